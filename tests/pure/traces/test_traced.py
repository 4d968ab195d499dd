"""Phases of chosen requests of a running engine: whole, contiguous, and nothing of others."""

from __future__ import annotations

import itertools

import pytest

from quire.core.events import RequestPreempted
from quire.core.reasons import Why
from quire.core.request import Ending
from quire.core.rules import Policy, Rules
from quire.engine.engine import Engine
from quire.traces.traced import RequestTrace, TracedRequests
from small_engines import engine_for, request, small_plan

PARENT = {"traceparent": "00-1-2-01"}


def traced_engine() -> tuple[Engine, TracedRequests]:
    """With two rows, shared fairly among tenants."""
    ticks = itertools.count(1)
    engine, _ = engine_for(small_plan(["full"], 8, rows=2), rules=Rules(policy=Policy.FAIR))
    return engine, TracedRequests(engine, clock_ns=lambda: next(ticks))


def run(engine: Engine, traced: TracedRequests) -> dict[str, RequestTrace]:
    found: dict[str, RequestTrace] = {}
    while not engine.scheduler.is_idle():
        engine.step()
        found |= {one.name: one for one in traced.take()}
    return found | {one.name: one for one in traced.take()}


def require_whole(trace: RequestTrace) -> None:
    assert [one.begin_ns for one in trace.phases[1:]] == [one.end_ns for one in trace.phases[:-1]]
    assert trace.parent == PARENT


def test_a_request_is_reported_when_it_has_ended_and_others_never() -> None:
    engine, traced = traced_engine()
    traced.begin("a", PARENT)
    engine.submit(request("a", 20, 5))
    engine.submit(request("b", 20, 5))
    engine.step()
    assert traced.take() == ()
    (trace,) = run(engine, traced).values()
    require_whole(trace)
    assert (trace.name, trace.ending) == ("a", Ending.LENGTH)
    assert [one.name for one in trace.phases] == ["queue", "prefill", "decode"]
    assert trace.phases[-1].numbers == {"outputs": 5}


def test_a_preempted_request_says_so_with_the_cause() -> None:
    """Alice has all rows; bob, who has none, is given one of hers."""
    engine, traced = traced_engine()
    preempted: list[str] = []
    engine.scheduler.events.subscribe(
        lambda event: preempted.append(event.request) if isinstance(event, RequestPreempted) else None
    )
    for name, tenant in (("a1", "alice"), ("a2", "alice"), ("b", "bob")):
        traced.begin(name, PARENT)
        engine.submit(request(name, 20, 40, tenant=tenant))
        for _ in range(5):
            engine.step()
    found = run(engine, traced)
    (name,) = preempted
    assert set(found) == {"a1", "a2", "b"}
    for trace in found.values():
        require_whole(trace)
        pauses = [one for one in trace.phases if one.name == "preempted"]
        assert len(pauses) == trace.preemptions == (trace.name == name)
    (pause,) = [one for one in found[name].phases if one.name == "preempted"]
    assert pause.reason is not None
    assert (pause.reason.code, pause.reason.requests) == (Why.NEEDS_ROW, ("b",))


def test_a_prompt_that_another_engine_computes_has_a_phase_of_its_own() -> None:
    engine, traced = traced_engine()
    traced.begin("a", PARENT)
    traced.hand_over("a")
    engine.submit(request("a", 20, 5))
    (trace,) = run(engine, traced).values()
    require_whole(trace)
    assert [one.name for one in trace.phases] == ["hand_over", "queue", "prefill", "decode"]


def test_one_that_is_cancelled_there_ends_there() -> None:
    """The engine has never seen it: no event reports its end."""
    _, traced = traced_engine()
    traced.begin("a", PARENT)
    traced.hand_over("a")
    traced.cancelled("a")
    (trace,) = traced.take()
    assert ([one.name for one in trace.phases], trace.ending) == (["hand_over"], None)


@pytest.mark.parametrize("steps", [0, 3])
def test_one_that_is_cancelled_here_ends_once(steps: int) -> None:
    engine, traced = traced_engine()
    traced.begin("a", PARENT)
    engine.submit(request("a", 20, 40))
    for _ in range(steps):
        engine.step()
    engine.cancel("a")
    traced.cancelled("a")
    (trace,) = run(engine, traced).values()
    require_whole(trace)
    assert trace.ending is Ending.CANCELLED
    assert traced.take() == ()


def test_one_that_is_refused_is_forgotten() -> None:
    engine, traced = traced_engine()
    traced.begin("a", PARENT)
    traced.refused("a")
    engine.submit(request("a", 20, 3))
    assert not run(engine, traced)
