"""With `deterministic`, what a request yields is the same alone and in any batch, to the last bit. In bf16."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from quire.core.sampling import Sampling
from quire.plan.settings import Budget, Settings

if not torch.cuda.is_available():
    pytest.skip("no GPU here", allow_module_level=True)

from quire.llm import LLM
from tiny_folder import make_folder

WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog", "sees", "a")
ASKING = Sampling(logprobs=3)
OUTPUTS = 12


def prompts(count: int) -> list[str]:
    """Of different lengths: some are longer than a page, and computed in pieces."""
    return [" ".join(WORDS[(place + word) % 10] for word in range(1 + place * 7 % 60)) for place in range(count)]


def test_a_request_yields_the_same_alone_and_among_others(tmp_path: Path) -> None:
    settings = Settings(max_length=256, max_requests=64, batch_tokens=96)
    llm = LLM(make_folder(tmp_path), settings=settings, budget=Budget(pool_bytes=64 << 20), dtype="bf16",
              device="cuda", deterministic=True)  # fmt: skip
    alone = []
    for prompt in prompts(8):
        alone += llm.generate([prompt], ASKING, max_tokens=OUTPUTS)
        llm.engine.drop_cache()
    for count in (8, 64, 200):
        together = llm.generate(prompts(count), ASKING, max_tokens=OUTPUTS)
        llm.engine.drop_cache()
        for one, other in zip(alone, together, strict=False):
            assert one.token_ids == other.token_ids
            assert one.logprobs == other.logprobs
