"""How many of those that wait a step takes in."""

from __future__ import annotations

import pytest

from doubles import silent_tier
from quire.core.request import Ending
from quire.core.rules import Policy, Rules
from quire.scheduler import admission
from quire.scheduler.admission import QUEUE_SIGHT
from small_engines import check, engine_for, request, run, small_plan


@pytest.mark.parametrize("policy", list(Policy))
def test_a_step_takes_in_as_many_as_its_tokens_hold(policy: Policy) -> None:
    engine, _ = engine_for(small_plan(["full", "window"], 200, budget=200, rows=40), rules=Rules(policy=policy))
    streams = [engine.submit(request(f"r{number}", 10, 4, tenant=f"t{number % 3}")) for number in range(30)]
    engine.step()
    assert len(engine.running()) == 20
    check(engine)
    run(engine, 100)
    assert {stream.ending for stream in streams} == {Ending.LENGTH}


def test_a_step_takes_in_no_more_than_those_that_run_can_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MOST_NEWCOMERS", 5)
    engine, _ = engine_for(small_plan(["full"], 200, budget=200, rows=40))
    for number in range(30):
        engine.submit(request(f"r{number}", 10, 4))
    engine.step()
    assert len(engine.running()) == 6, "the elder and five more"


@pytest.mark.parametrize(("large", "passes"), [(QUEUE_SIGHT - 1, True), (QUEUE_SIGHT, False)])
def test_a_step_passes_over_a_few_that_do_not_fit_and_no_more(large: int, passes: bool) -> None:
    engine, _ = engine_for(small_plan(["full"], 5, rows=20))
    engine.submit(request("first", 150, 50))
    engine.step()
    for number in range(large):
        engine.submit(request(f"large{number}", 150, 50))
    engine.submit(request("small", 10, 5))
    engine.step()
    assert (engine.scheduler.queue.find("small") is None) == passes


def test_a_step_leaves_few_to_a_tier() -> None:
    """Host memory has room for few transfers at a time: whoever finds none computes everything again."""
    tier = silent_tier(1)
    engine, _ = engine_for(small_plan(["full"], 200, budget=200, rows=40), tier=tier)
    for number in range(30):
        engine.submit(request(f"r{number}", 100, 4))
    engine.step()
    assert len(tier.transfers) == 1 + QUEUE_SIGHT, "the elder's, and as many as a step looks at"
