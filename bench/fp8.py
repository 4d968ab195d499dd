"""What keys and values in 8 bits cost and gain: perplexity of SmolLM2-135M on real text, and requests in one pool.

    python bench/fp8.py [--prompts 8] [--tokens 512]

The text is Python's own reference (`pydoc_data.topics`), in pieces of equal length; weights and products are fp32, so
that only what is stored differs. Requests are the plan's for the same pool, which the allocator is tested against.
"""

from __future__ import annotations

import argparse
import math
import pydoc_data.topics
import sys
from pathlib import Path

from quire.core.dtypes import DType
from quire.core.sampling import Sampling
from quire.fetch.default import fetch_default
from quire.llm import LLM
from quire.plan.bound import concurrency
from quire.plan.settings import Budget, Settings

POOL = Budget(pool_bytes=1 << 30)
DTYPES = (DType.FP32, DType.FP16, DType.FP8)


def pieces_of(llm: LLM, prompts: int, tokens: int) -> list[list[int]]:
    text = "\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
    ids = llm.tokenizer.encode(text[: 16 * prompts * tokens])
    return [ids[begin : begin + tokens] for begin in range(0, prompts * tokens, tokens)]


def perplexity(llm: LLM, pieces: list[list[int]]) -> float:
    said = llm.generate(pieces, Sampling(prompt_logprobs=0), max_tokens=1)
    values = [token.logprob for one in said for token in one.prompt_logprobs or ()]
    if len(values) != sum(len(piece) - 1 for piece in pieces):
        raise SystemExit(f"{len(values)} tokens have a log-probability: not all were told")
    return math.exp(-sum(values) / len(values))


def measure(folder: Path, dtype: DType, prompts: int, tokens: int) -> tuple[float, int]:
    settings = Settings(max_length=2048, max_requests=4096, batch_tokens=512, kv_dtype=dtype)
    llm = LLM(folder, settings=settings, budget=POOL)
    if llm.plan.kv_dtype != dtype.value:
        raise SystemExit(f"keys and values are {llm.plan.kv_dtype}, not {dtype.value}")
    return perplexity(llm, pieces_of(llm, prompts, tokens)), concurrency(llm.plan, 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description="Keys and values in 8 bits.")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=512)
    options = parser.parse_args()
    print("| keys and values | perplexity | change | requests of 1,024 tokens in 1 GiB | gain |\n|" + " --- |" * 5)
    first: tuple[float, int] | None = None
    for dtype in DTYPES:
        found, many = measure(fetch_default(), dtype, options.prompts, options.tokens)
        first = first or (found, many)
        print(f"| {dtype.value} | {found:.3f} | {found / first[0] - 1:+.2%} | {many:,} | {many / first[1]:.2f}× |")


if __name__ == "__main__":
    sys.exit(main())
