"""Perplexity of SmolLM2-135M in each form in which its weights can lie in memory, on real text.

    python bench/perplexity.py [--prompts 8] [--tokens 512]

The text is Python's own reference (`pydoc_data.topics`), in pieces of equal length. The file that is shipped has
matrices in Q4_1 and its embedding in Q8_0: it runs as it is, expanded to fp32, and from there in the other forms.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from fp8 import perplexity, pieces_of
from quire.core.dtypes import DType
from quire.fetch.default import fetch_default
from quire.llm import LLM
from quire.plan.settings import Budget, Settings
from quire.worker.weights.expand import expand

FORMS: dict[str, dict[str, Any]] = {
    "fp32": {}, "bf16": {"dtype": DType.BF16}, "fp8": {"weights": "fp8"}, "int8": {"weights": "int8"},
    "int4": {"weights": "int4"},
}  # fmt: skip
SETTINGS = Settings(max_length=2048, max_requests=4, batch_tokens=512, kv_dtype=DType.FP32)
POOL = Budget(pool_bytes=1 << 29)


def measure(folder: Path, prompts: int, tokens: int, **options: Any) -> tuple[float, int]:
    """Perplexity, and planned bytes of weights."""
    llm = LLM(folder, device="cpu", settings=SETTINGS, budget=POOL, **options)
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
        first = None
        for name, (folder, form) in forms.items():
            found, size = measure(folder, options.prompts, options.tokens, **form)
            first = first or found
            print(f"| {name} | {size / 2**20:.0f} | {found:.3f} | {found / first - 1:+.2%} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
