"""A draft model's memory travels with that of the model that it guesses for."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from quire.core.events import LoadFinished, RequestPreempted, TokensDrafted
from quire.llm import LLM
from quire.options.tiers import Tiers
from quire.plan.settings import Budget, Settings
from tiered import TieredService
from tiny_folder import make_folder
from tiny_models import PAGE, plan_of, tight_plan

LOOKAHEAD = 3
OUTPUTS = 24
PAIRS = [
    ("gemma3_text", "gemma3_text"), ("lfm2", "lfm2"), ("gemma3_text", "llama"), ("llama", "lfm2"),
    ("deepseek_v3", "llama"),
]  # fmt: skip
"""Model and draft model: kinds in common, kinds of one alone, states on either side."""


def prompts() -> list[np.ndarray]:
    random = np.random.default_rng(5)
    return [random.integers(3, 97, 2 * PAGE + 5 + 3 * place).astype(np.int32) for place in range(3)]


@cache
def alone(name: str) -> list[list[int]]:
    """Tokens without a draft model, without a tier."""
    service = TieredService(name, plan_of(name, batch_tokens=32))
    found = [service.ask(prompt, OUTPUTS, f"{place}").tokens().tolist() for place, prompt in enumerate(prompts())]
    service.stack.close()
    return found


@pytest.mark.parametrize(("name", "draft"), PAIRS)
def test_tokens_and_guesses_after_a_round_trip_are_those_of_a_run_without(name: str, draft: str) -> None:
    """What the draft model kept comes back too: guesses of a model for itself all come true, before and after."""
    service = TieredService(name, plan_of(name, batch_tokens=32, lookahead=LOOKAHEAD, draft=draft), draft=draft)
    expected = alone(name)
    for turn in ("first", "second"):
        for place, prompt in enumerate(prompts()):
            assert service.ask(prompt, OUTPUTS, f"{turn}{place}").tokens().tolist() == expected[place]
        service.drop_cache()
    assert sum(service.tokens(LoadFinished)) >= 3 * PAGE
    sums = service.engine.counters.sums
    drafted, accepted = (sums[TokensDrafted, word] for word in ("drafted", "accepted"))
    assert accepted == drafted > 0 if name == draft else drafted > 0
    service.stack.close()


@pytest.mark.parametrize(("name", "more_sheets"), [("llama", 3), ("gemma3_text", 3), ("lfm2", 1)])
def test_requests_that_are_sent_away_in_the_midst_of_guesses_come_back(
    name: str, more_sheets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = alone(name)
    service = TieredService(name, tight_plan(name, more_sheets, lookahead=LOOKAHEAD, draft=name), draft=name)
    monkeypatch.setattr(service.stack, "seconds_to_load", lambda _: 0.0)
    service.engine.scheduler.admission.typical_output = 1.0
    streams = service.send(prompts(), OUTPUTS)
    service.engine.drain()
    assert [stream.tokens().tolist() for stream in streams] == expected
    sent = {event.request for event in service.events if isinstance(event, RequestPreempted)}
    assert sent & {event.request for event in service.events if isinstance(event, LoadFinished)}
    sums = service.engine.counters.sums
    assert sums[TokensDrafted, "accepted"] == sums[TokensDrafted, "drafted"] > 0
    service.stack.close()


def test_both_are_asked_for_together(tmp_path: Path) -> None:
    """As `--draft-model` with `--host-memory` does: an answer again, from host memory alone."""
    model, draft = tmp_path / "model", tmp_path / "draft"
    for folder in (model, draft):
        folder.mkdir()
        make_folder(folder)
    settings = Settings(max_requests=4, batch_tokens=64, max_length=256)
    tiers = Tiers(host_bytes=8 << 20)
    llm = LLM(model, settings=settings, budget=Budget(pool_bytes=4 << 20), tiers=tiers, draft_model=draft)
    prompt = "the quick brown fox sees the lazy dog " * 10
    (first,) = llm.generate(prompt, max_tokens=24)
    llm.engine.drain()  # what goes out is out
    llm.engine.scheduler.reuse.index.drop()
    (second,) = llm.generate(prompt, max_tokens=24)
    assert first.text == second.text
    assert llm.engine.counters.sums[LoadFinished, "tokens"] >= 64
    assert llm.engine.counters.sums[TokensDrafted, "accepted"] == llm.engine.counters.sums[TokensDrafted, "drafted"] > 0
    llm.close()
