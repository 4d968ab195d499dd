"""Perplexity of SmolLM2-135M in each form in which its weights can lie in memory, on real text.

    python bench/perplexity.py [--prompts 8] [--tokens 512]

The text is Python's own reference (`pydoc_data.topics`), in pieces of equal length. The file that is shipped has
matrices in Q4_1 and its embedding in Q8_0: it runs as it is, expanded to fp32, and from there in the other forms. The
last one rounds tokens to fp8 before each product, as a GPU does with more than a few (`kernels/rounded.py`).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from fp8 import perplexity, pieces_of
from quire.core.dtypes import DType
from quire.fetch.default import fetch_default
from quire.llm import LLM
from quire.plan.settings import Budget, Settings
from quire.worker.model import packed_cpu
from quire.worker.model.packed_experts import multiply_each
from quire.worker.model.packed_linear import multiply, use_products
from quire.worker.weights.expand import expand
from quire.worker.weights.packed import PackedWeight

FORMS: dict[str, dict[str, Any]] = {
    "fp32": {}, "bf16": {"dtype": DType.BF16}, "fp8": {"weights": "fp8"}, "int8": {"weights": "int8"},
    "int4": {"weights": "int4"},
}  # fmt: skip
SETTINGS = Settings(max_length=2048, max_requests=4, batch_tokens=512, kv_dtype=DType.FP32)
POOL = Budget(pool_bytes=1 << 29)
EIGHT = torch.float8_e4m3fn


def with_rounded_tokens(tokens: torch.Tensor, packed: PackedWeight, bias: torch.Tensor | None) -> torch.Tensor:
    scales = tokens.abs().amax(-1, keepdim=True).clamp(min=1e-12) / torch.finfo(EIGHT).max
    return multiply((tokens / scales).to(EIGHT).to(tokens.dtype) * scales, packed, bias)


def measure(folder: Path, prompts: int, tokens: int, **options: Any) -> tuple[float, int]:
    """Perplexity, and planned bytes of weights."""
    llm = LLM(folder, device="cpu", settings=SETTINGS, budget=POOL, **options)
    return measured(llm, prompts, tokens)


def measure_rounded(folder: Path, prompts: int, tokens: int) -> tuple[float, int]:
    with patch.object(packed_cpu, "fits", lambda _packed: False):
        llm = LLM(folder, device="cpu", settings=SETTINGS, budget=POOL, weights="fp8")
    use_products(llm.engine.runner.model.model, with_rounded_tokens, multiply_each)
    return measured(llm, prompts, tokens)


def measured(llm: LLM, prompts: int, tokens: int) -> tuple[float, int]:
    found = perplexity(llm, pieces_of(llm, prompts, tokens))
    return found, sum(line.bytes for line in llm.plan.ranks[0].ledger if line.name == "weights")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=512)
    options = parser.parse_args()
    print("| weights | MiB | perplexity | change |\n| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as scratch:
        plain = expand(fetch_default(), Path(scratch) / "fp32")
        forms = {**{name: (plain, form) for name, form in FORMS.items()}, "Q4_1 in place": (fetch_default(), {})}
        ways = {name: partial(measure, folder, **form) for name, (folder, form) in forms.items()}
        ways |= {"fp8, tokens in fp8 too": partial(measure_rounded, plain)}
        first = None
        for name, way in ways.items():
            found, size = way(prompts=options.prompts, tokens=options.tokens)
            first = first or found
            print(f"| {name} | {size / 2**20:.0f} | {found:.3f} | {found / first - 1:+.2%} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
