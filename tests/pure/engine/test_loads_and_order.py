"""Loads from a tier, fair shares, the bound on preemption, explanations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from doubles import silent_tier
from quire.core.events import Event, LoadFailed, RequestAdmitted, RequestEnded, RequestPreempted, StepLaunched
from quire.core.reasons import Reason, Why
from quire.core.request import Ending, Request
from quire.core.rules import Policy, Rules
from quire.core.tier import TransferDone, TransferFailed
from quire.engine.engine import Engine
from quire.explain.explanation import Explanation
from quire.explain.request import explain
from quire.explain.sentences import describe, sentence
from quire.plan.records import Records
from quire.tiers.in_memory import InMemoryTier
from shadow import token_for
from small_engines import check, engine_for, is_empty, request, run, small_plan

MIXES = [["full"], ["full", "window"], ["sink", "full"], ["chunked", "full"], ["state", "full", "window"]]


def loading_engine(names: list[str], tier: InMemoryTier, **options: object) -> tuple[Engine, list[Event], list[float]]:
    events: list[Event] = []
    now = [0.0]
    engine, runner = engine_for(
        small_plan(names, 60), tier=tier, listeners=[events.append], clock=lambda: now[0], pause=lambda: None, **options
    )
    runner.tier = tier  # type: ignore[attr-defined]
    return engine, events, now


@pytest.mark.parametrize("names", MIXES)
def test_a_load_that_finishes_saves_its_tokens(names: list[str]) -> None:
    """The row computes from where the load ended, and yields what it would have yielded alone."""
    tier = silent_tier(2)
    engine, events, _ = loading_engine(names, tier)
    stream = engine.submit(request("r", 150, 5))
    for _ in range(3):
        engine.step()
        check(engine)
    assert stream.tokens().size == 0
    tier.answer(TransferDone(0))
    engine.step()
    loaded = 2 * engine.scheduler.reuse.index.unit
    assert explain(engine, "r").reason.numbers["loaded_tokens"] == loaded  # type: ignore[union-attr]
    assert f", {loaded} tokens came from a tier, " in describe(explain(engine, "r"))  # type: ignore[arg-type]
    run(engine, 50)
    assert stream.tokens().tolist() == [token_for("r", 150 + i) for i in range(5)]
    assert sum(e.tokens for e in events if isinstance(e, StepLaunched)) == 154 - loaded
    assert is_empty(engine)


def test_of_a_load_only_what_the_pool_lacked_is_said_to_come_from_the_tier() -> None:
    tier = silent_tier(3)
    engine, _, _ = loading_engine(["full"], tier)
    unit = engine.scheduler.reuse.index.unit
    engine.submit(request("first", unit + 1, 1, shared=unit))
    engine.step()
    tier.answer(TransferDone(0))
    run(engine, 50)
    engine.submit(request("again", 3 * unit + 1, 2, shared=unit))
    engine.step()
    tier.answer(TransferDone(1))
    engine.step()
    assert engine.scheduler.running.tickets[engine.scheduler.rows.row_of["again"]].hit_tokens == unit
    assert explain(engine, "again").reason.numbers["loaded_tokens"] == 2 * unit  # type: ignore[union-attr]
    run(engine, 50)


@pytest.mark.parametrize("names", MIXES)
@pytest.mark.parametrize("ending", ["failed", "late", "cancelled"])
def test_a_load_that_does_not_finish_costs_nothing_but_time(names: list[str], ending: str) -> None:
    """Failed or late, the tokens are computed; an answer that comes when nobody waits is ignored."""
    tier = silent_tier(2)
    engine, events, now = loading_engine(names, tier, rules=Rules(load_seconds=3.0))
    stream = engine.submit(request("r", 150, 5))
    engine.step()
    transfer = tier.transfers[0]
    if ending == "failed":
        tier.answer(TransferFailed(0, "disk on fire"))
    elif ending == "late":
        now[0] = 3.0
    else:
        engine.cancel("r")
        stream = engine.submit(request("again", 150, 5))
    engine.step()
    if ending == "cancelled":
        assert not tier.transfers[0].is_awaited
        tier.answer(TransferFailed(1, ""))
    tier.transfers[0] = replace(transfer, due=0.0)  # also where it has failed
    run(engine, 50)
    assert stream.ending is Ending.LENGTH
    reasons = {"failed": ["disk on fire"], "late": ["no answer in 3 s"], "cancelled": ["the tier reported an error"]}
    assert [sentence(e.reason) for e in events if isinstance(e, LoadFailed)] == reasons[ending]
    assert is_empty(engine)


@pytest.mark.story
@pytest.mark.parametrize("names", MIXES[:2])
def test_a_load_has_a_second_more_for_each_so_many_bytes(names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Five seconds brought 2.8 GiB from a disk; whoever had more to load always came late."""
    monkeypatch.setattr("quire.core.rules.SLOWEST_LOAD_BYTES", 4096)
    tier = silent_tier(8)
    engine, events, now = loading_engine(names, tier, rules=Rules(load_seconds=3.0))
    engine.submit(request("r", 150, 5))
    engine.step()
    (transfer,) = tier.transfers.values()
    seconds = 3 + Records(small_plan(names, 60)).most_prefix_bytes(transfer.load.tokens) // 4096
    assert seconds > 4
    now[0] = seconds - 0.5
    engine.step()
    assert [event for event in events if isinstance(event, LoadFailed)] == []
    now[0] = float(seconds)
    engine.step()
    (failed,) = [event for event in events if isinstance(event, LoadFailed)]
    assert failed.reason == Reason(Why.NO_ANSWER, numbers={"seconds": seconds})
    run(engine, 50)
    assert is_empty(engine)


def test_tenants_get_tokens_by_their_weights_however_many_requests_they_send() -> None:
    """Weights 2 and 1, one sends four times as many: while both have work, served tokens go 2 to 1."""
    rules = Rules(policy=Policy.FAIR)
    engine, _ = engine_for(small_plan(["full"], 60, rows=6), rules=rules)
    order: list[str] = []
    engine.scheduler.events.subscribe(lambda e: order.append(e.request) if isinstance(e, RequestAdmitted) else None)
    for i in range(96):
        engine.submit(request(f"light{i}", 40, 20, tenant="light"))
    for i in range(24):
        engine.submit(request(f"heavy{i}", 40, 20, tenant="heavy", weight=2.0))
    run(engine, 5000)
    first = order[:24]
    assert 14 <= sum(name.startswith("heavy") for name in first) <= 17, first


def test_first_come_ignores_priority() -> None:
    engine, _ = engine_for(small_plan(["full"], 12, rows=1), rules=Rules(policy=Policy.FIRST_COME))
    order: list[str] = []
    engine.scheduler.events.subscribe(lambda e: order.append(e.request) if isinstance(e, RequestEnded) else None)
    for i in range(4):
        engine.submit(request(f"r{i}", 20, 5, priority=i))
    run(engine, 500)
    assert order == ["r0", "r1", "r2", "r3"]


def test_nobody_is_preempted_for_ever() -> None:
    """At most twice, and once more for each older request that was not running then."""
    preempted: dict[str, int] = {}

    def count(event: Event) -> None:
        if isinstance(event, RequestPreempted):
            preempted[event.request] = preempted.get(event.request, 0) + 1

    engine, _ = engine_for(small_plan(["full", "window"], None, rows=6), listeners=[count])
    engine.scheduler.admission.typical_output = 1.0
    for i in range(12):
        engine.submit(request(f"r{i}", 20 + i, 90, priority=i % 3))
        engine.scheduler.admission.typical_output = 1.0
    run(engine, 20_000)
    assert preempted, "nobody was preempted: nothing was shown"
    assert all(times <= 2 + int(name[1:]) for name, times in preempted.items())


def told_behind(prompt: int, outputs: int) -> tuple[Engine, Explanation]:
    """Why `large` waits behind `first`, both of this size."""
    engine, _ = engine_for(small_plan(["full"], None, rows=4))
    for name in ("first", "large"):
        engine.submit(request(name, prompt, outputs))
        engine.step()
    told = explain(engine, "large")
    assert told is not None
    return engine, told


def test_pages_that_are_free_but_awaited_are_told() -> None:
    """There is room for both now, and not for what the first is likely to become."""
    _, told = told_behind(10, 190)
    (full,) = told.kinds
    assert full.needs_pages <= full.free_pages
    assert full.needs_pages + full.awaited_pages > full.free_pages
    assert full.short_pages == full.needs_pages + full.awaited_pages - full.free_pages
    taken = f"running requests are likely to take {full.awaited_pages:,},"
    assert f"{full.free_pages:,} are free, {taken}" in describe(told)


def test_a_waiting_request_is_told_what_it_lacks_who_has_it_and_when_it_can_run() -> None:
    engine, told = told_behind(150, 50)
    assert told.status == "waiting"
    (full,) = told.kinds
    assert full.short_pages > 0
    assert full.requests[0][0] == "first"
    assert told.after == ("first",)
    assert 0 < told.steps <= 2 * 200
    text = describe(told)
    assert told.reason == Reason(Why.MEMORY)
    assert text.startswith("large waits: not enough free KV memory: ")
    assert "there is room for it when first has ended; it runs within" in text
    assert text in (Path(__file__).parents[3] / "docs" / "events.md").read_text(encoding="utf-8")
    before = [memory.pool.free_sheets for memory in engine.scheduler.memories]
    assert explain(engine, "nobody") is None
    assert before == [memory.pool.free_sheets for memory in engine.scheduler.memories]
    assert steps_until_it_runs(engine, "large") <= told.steps
    assert "nothing was reused" in describe(explain(engine, "large"))  # type: ignore[arg-type]


def steps_until_it_runs(engine: Engine, name: str) -> int:
    """Launched before the one that it runs in."""
    begin = engine.scheduler.steps
    while engine.scheduler.queue.find(name) is not None:
        before = engine.scheduler.steps
        engine.step()
    return before - begin


def test_a_request_that_shares_a_prefix_waits_for_whoever_computes_it() -> None:
    """Two prompts that share all but the end, sent together: the second waits a step and then reuses it."""
    engine, _ = engine_for(small_plan(["state", "full"], 60))
    engine.submit(request("a", 150, 30, shared=140))
    engine.submit(request("b", 150, 30, shared=140))
    engine.step()
    told = explain(engine, "b")
    assert told is not None
    assert told.reason == Reason(Why.PREFIX, ("a",))
    run(engine, 100)
    (admitted,) = [e for e in engine.history.of("b") if isinstance(e, RequestAdmitted)]
    assert admitted.hit_tokens == 140 // engine.scheduler.reuse.index.unit * engine.scheduler.reuse.index.unit


def test_a_miss_because_of_scope_says_so() -> None:
    engine, _ = engine_for(small_plan(["full"], 60))
    prompt = request("x", 150, 5).prompt
    for name, scope in (("a", "one"), ("b", "two")):
        engine.submit(Request(name, prompt, 5, scope=scope))
        run(engine, 50)
    (admitted,) = [e for e in engine.history.of("b") if isinstance(e, RequestAdmitted)]
    assert admitted.miss is Why.SCOPE


def test_two_rows_that_give_the_same_page_back_in_one_step_both_let_go() -> None:
    """A window's page shared by two requests leaves both windows in the same step: it was counted once."""
    engine, _ = engine_for(small_plan(["chunked"], None, budget=17), overlap=1)
    prompt = np.arange(70, dtype=np.int32)
    engine.submit(Request("a", prompt, 1))
    engine.submit(Request("b", np.append(prompt[:64], np.arange(6, dtype=np.int32)), 1))
    run(engine, 100)
    assert is_empty(engine)
