"""A host tier on virtual time: what it brings back, what it costs, and that its faults neither stall nor leak."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_replay import MODEL, SPEED, asked

from quire.check.promises import check_books, check_nothing_left
from quire.core.rules import Rules
from quire.models.read import read_model
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings
from quire.simulate.cost import cost_model
from quire.simulate.replay import Replay
from quire.simulate.replica import Stalled
from quire.simulate.report import report
from quire.simulate.tier import HostCost
from quire.simulate.traces import Trace, read_trace

TRACE = Path(__file__).parents[4] / "shared" / "traces" / "mooncake_fast25_conversation.jsonl.gz"
QUICK = HostCost(50e9)


def talks(turns: int = 4, count: int = 12) -> Trace:
    """Talks that take turns in a pool for a few of them: each prompt repeats the one before and adds to it."""
    requests = []
    for turn in range(turns):
        for talk in range(count):
            pieces = [(100 * talk + part, 0, 640) for part in range(turn + 1)]
            requests.append(asked(f"{talk}.{turn}", 20.0 * turn + 0.1 * talk, *pieces))
    return Trace("talks", tuple(requests))


def plan_of(model: str, pool_bytes: int, host_bytes: int = 1 << 32) -> Plan:
    shape = read_model(model)
    return make_plan(shape, Settings(host_bytes=host_bytes), Budget(memory_bytes=1 << 38, pool_bytes=pool_bytes))


def replay_of(
    trace: Trace,
    host: HostCost | None,
    model: str = MODEL.name,
    pool_bytes: int = 1 << 27,
    overhead_seconds: float = 1e-3,
) -> Replay:
    plan = plan_of(model, pool_bytes)
    return Replay(plan, cost_model(plan, read_model(model), SPEED, overhead_seconds, 1.0), trace, Rules(), host)


def check_nothing_held(replay: Replay) -> None:
    assert replay.tier is not None
    replay.wait_for_transfers()
    assert replay.tier.held_blocks() == 0
    check_nothing_left(replay.engine.scheduler)


def test_what_the_pool_forgot_comes_back_from_host_memory() -> None:
    without, beside = replay_of(talks(), None), replay_of(talks(), QUICK)
    bare, found = report(without.play()), report(beside.play())
    assert bare["tier"] is None
    assert found["finished"] == bare["finished"] == 48
    assert found["tier"]["loads_done"] > 10
    assert found["busy_share"] < bare["busy_share"]
    check_nothing_held(beside)


def test_what_a_tier_brings_counts_as_reused() -> None:
    """In a pool for a few talks nearly nothing is found; with host memory nearly all that could be."""
    without, beside = (report(replay_of(talks(), host).play()) for host in (None, QUICK))
    assert without["hit_rate"] < 0.1
    assert 0.95 * beside["hit_rate_ceiling"] < beside["hit_rate"] <= beside["hit_rate_ceiling"]


def test_a_load_takes_its_bytes_through_the_bandwidth() -> None:
    """One talk comes back after another pushed it out: its first token waits for 640 tokens through 1 GB/s."""
    requests = [
        asked("a", 0.0, (1, 0, 640)),
        asked("b", 1.0, (2, 0, 4000)),
        asked("a again", 5.0, (1, 0, 640), (3, 0, 64)),
    ]
    slow, quick = (replay_of(Trace("one", tuple(requests)), HostCost(speed)) for speed in (1e9, 1e12))
    waits = [(one.play().recorder.first - one.recorder.arrived)[2] for one in (slow, quick)]
    assert slow.tier is not None
    size = slow.tier.counters["loaded_bytes"]
    assert size > 0
    assert waits[0] - waits[1] == pytest.approx(size / 1e9 - size / 1e12, rel=0.01)


@pytest.mark.parametrize(("model", "pool"), [("llama-3.2-1b", 1 << 28), ("gemma-3-1b", 1 << 26)])
def test_whatever_a_tier_does_every_request_ends_and_nothing_is_held(model: str, pool: int) -> None:
    replay = replay_of(talks(turns=8), HostCost(2e9, 7), model, pool)
    found = report(replay.play())
    assert found["finished"] == 96
    assert min(found["tier"][name] for name in ("loads_done", "loads_failed", "loads_late", "outages")) > 0
    check_nothing_held(replay)


def test_equal_seeds_give_equal_runs() -> None:
    runs = [report(replay_of(talks(), HostCost(2e9, 5)).play()) for _ in range(2)]
    assert runs[0] == runs[1]


def test_a_stall_is_noticed() -> None:
    """A planted one: a load without end, whose deadline nobody keeps."""
    replay = replay_of(talks(turns=2, count=1), HostCost(1.0))
    replay.engine.scheduler.loads._seconds = lambda _: np.inf
    with pytest.raises(Stalled):
        replay.play(lambda *_: replay.engine.scheduler.reuse.index.drop())


@pytest.mark.skipif(not TRACE.exists(), reason="the trace is not here")
def test_the_beginning_of_the_conversation_trace_with_random_faults_neither_stalls_nor_leaks() -> None:
    """The short form of bench/hour.py; now and then its books are counted again."""
    replay = replay_of(read_trace(TRACE, 60), HostCost(50e9, 7), "gemma-3-1b", 1 << 29, overhead_seconds=0.05)
    calls = 0

    def look(*_: int) -> None:
        nonlocal calls
        calls += 1
        if calls % 100 == 0:
            check_books(replay.engine.scheduler)

    found = report(replay.play(look))
    assert found["finished"] + found["refused"] == 60
    assert calls > 200
    check_nothing_held(replay)
