"""Scenario 11: what was stored and forgotten comes back byte by byte, and tokens after it are those of a cold run."""

from __future__ import annotations

import numpy as np
import pytest

from quire.core.events import What
from quire.worker.tiny import WINDOW
from tiered import MODELS, TieredService
from tiny_models import PAGE, plan_of

OUTPUTS = 4
LENGTHS = (PAGE + 1, 2 * PAGE, 2 * PAGE + 1, 3 * WINDOW, 4 * PAGE + 3)


def prompt_of(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(3, 97, length).astype(np.int32)


@pytest.mark.parametrize("name", MODELS)
def test_tokens_after_a_round_trip_through_host_memory_are_those_of_a_cold_run(name: str) -> None:
    """Each prompt is computed, forgotten and asked again, twice: all its whole units but the last token's come back."""
    service = TieredService(name, plan_of(name, batch_tokens=32))
    for length in LENGTHS:
        prompt = prompt_of(length, length)
        cold = service.ask(prompt, OUTPUTS, f"cold {length} ").tokens().tolist()
        for again in range(2):
            service.drop_cache()
            service.events.clear()
            warm = service.ask(prompt, OUTPUTS, f"warm {length} {again} ")
            assert warm.tokens().tolist() == cold, f"length {length}"
            assert service.tokens(What.LOADED) == [(length - 1) // PAGE * PAGE], f"length {length}"
    service.stack.close()
