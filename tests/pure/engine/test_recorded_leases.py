"""Recordings contain leases: those that are asked for, released, expired, moved and broken play back exactly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from quire.core.events import Event
from quire.core.request import Retain
from quire.engine.engine import Engine
from quire.prefix.lease_sizes import lease_sheets
from quire.prefix.leases import LeaseEnded, LeaseHeld, LeaseTerms
from quire.recording.recorder import RecordingEngine
from quire.recording.replay import replay as play_back
from shadow import ShadowRunner
from small_engines import request, small_plan


def _record(path: Path, events: list[Event]) -> Engine:
    runner, now = ShadowRunner(), [0.0]
    with path.open("w") as file:
        plan = small_plan(["full", "window", "state"], 60)
        engine = RecordingEngine(file, plan, runner, clock=lambda: now[0], listeners=(events.append,))
        runner.attach(engine.scheduler)

        def run() -> None:
            while engine.step():
                now[0] += 1.0

        engine.submit(request("a", 100, 20, retain=Retain(500.0, "chat", 1 << 40)))
        engine.submit(request("b", 90, 20, tenant="t"))
        run()
        tokens = request("b", 90, 20).prompt
        assert engine.lease(LeaseTerms("asked", "t", 30.5), "", tokens).refusal is None
        assert engine.lease(LeaseTerms("brief", "t", 3.5), "", tokens).refusal is None
        assert engine.lease(LeaseTerms("absent", "t", 3.5), "", tokens[::-1].copy()).refusal is not None
        engine.submit(request("c", 130, 20, shared=80, retain=Retain(9.0)))
        run()
        assert not engine.release_lease("nothing")
        engine.release_lease("asked")
        grown = np.concatenate([request("a", 100, 20).prompt, np.arange(20, dtype=np.int32)])
        engine.submit(request("d", 100, 10, retain=Retain(50.0, "chat")))
        run()
        engine.lease(LeaseTerms("last", "t", 9.0), "", grown)
        engine.drop_cache()
        engine.submit(request("e", 100, 10))
        run()
    return engine


@pytest.mark.story
def test_a_lease_that_ended_while_the_engine_was_idle_is_over_in_the_replay_too(tmp_path: Path) -> None:
    """Idle steps are not recorded. The request that comes next has the lease's room, in the recording and again."""
    path, events, again = tmp_path / "run.jsonl", list[Event](), list[Event]()
    runner, now = ShadowRunner(), [0.0]
    with path.open("w") as file:
        plan = small_plan(["full"], 60)
        plan = replace(plan, stages=(replace(plan.stages[0], lease_sheets=lease_sheets(plan, 120)[0]),))
        engine = RecordingEngine(file, plan, runner, clock=lambda: now[0], listeners=(events.append,))
        runner.attach(engine.scheduler)
        for name, seconds in (("a", 5.0), ("b", 50.0)):
            stream = engine.submit(request(name, 100, 20, retain=Retain(seconds)))
            assert stream.lease is not None
            assert stream.lease.refusal is None
            engine.drain()
            now[0] += 10.0
            engine.step()
    play_back(path, listeners=(again.append,))
    assert again == events[: len(again)]
    assert [event.label for event in again if isinstance(event, LeaseEnded)] == ["expired"]
    assert sum(isinstance(event, LeaseHeld) for event in again) == 2


def test_a_recording_with_leases_plays_back_exactly(tmp_path: Path) -> None:
    """Every event comes again in the same step, and the same leases are held half-way."""
    path, events, again = tmp_path / "run.jsonl", list[Event](), list[Event]()
    recorded = _record(path, events)
    played = play_back(path, listeners=(again.append,))
    assert again == events
    assert played.scheduler.steps == recorded.scheduler.steps
    endings = {label for event, label in recorded.counters.events if event.name == "lease_ended"}
    assert endings >= {"released", "expired", "cache_dropped"}
    held = play_back(path, to_step=recorded.scheduler.steps // 2).leases()
    assert held
