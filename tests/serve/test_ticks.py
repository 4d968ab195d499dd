"""What the engine's process reports to the HTTP process, and when."""

from __future__ import annotations

from multiprocessing import Pipe
from multiprocessing.connection import Connection

import pytest

from quire.cache.audit import BooksDoNotBalance
from quire.serve.engine_process import STATUS_SECONDS, EngineLoop, Updates
from quire.serve.messages import Cancel, EngineTick, Submit
from small_engines import engine_for, request, small_plan


@pytest.mark.story
def test_a_status_follows_at_once_when_the_engine_becomes_busy_or_idle() -> None:
    """Metrics said that an engine was idle for up to half a second after its first token: the clock stands still here,
    so that only a change can be the reason for a status."""
    here, there = Pipe()
    updates = Updates()
    engine, _ = engine_for(small_plan(["full"], None), listeners=(updates,))
    loop = EngineLoop(engine, there, updates, clock=lambda: 0.0)

    def turn() -> EngineTick:
        loop.turn()
        tick: EngineTick = here.recv()
        return tick

    assert turn().status is not None
    assert turn().is_audited
    assert turn().status is None
    here.send(Submit((request("a", 20, 9),)))
    ticks = [turn() for _ in range(20)]
    running = [tick.status.running if tick.status is not None else None for tick in ticks]
    first, last = running.index(1), running.index(0)
    assert not ticks[first].is_idle
    assert all(not tick.updates and not tick.tokens for tick in ticks[:first]), "a token came before the status"
    assert ticks[last].is_idle
    assert ticks[last + 1].is_audited
    assert all(one is None for one in running[first + 1 : last] + running[last + 2 :])
    alone = [tokens for tick in ticks for tokens in tick.tokens.values()]
    others = [update for tick in ticks for update in tick.updates]
    assert sum(map(len, alone)) + sum(len(update.tokens) for update in others) == 9
    assert len(alone) >= 7, "tokens in the middle of an answer are no updates of their own"
    loop.clock = lambda: STATUS_SECONDS
    assert turn().status is not None


@pytest.mark.story
def test_neither_the_last_tokens_nor_the_next_request_wait_for_an_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine audited its memory before it sent the tick with the last tokens: for a large pool that took longer
    than a step, and clients that went on at once waited for it, too."""
    here, there = Pipe()
    updates = Updates()
    engine, _ = engine_for(small_plan(["full"], None), listeners=(updates,))
    loop, audits = EngineLoop(engine, there, updates), []
    monkeypatch.setattr("quire.serve.engine_process.audit", lambda *_: audits.append(there.poll()))

    def until_idle() -> EngineTick:
        while not (tick := _turn(loop, here)).is_idle:
            assert not audits
        return tick

    until_idle()
    for name in ("a", "b"):
        here.send(Submit((request(name, 20, 9),)))
        loop.turn()
        assert not here.recv().is_idle
        assert until_idle().status is not None
        assert not audits, "the tick that says idle was sent without an audit"
    tick = _turn(loop, here)
    assert (len(audits), tick.is_audited, tick.books) == (len(engine.scheduler.memories), True, "")
    assert not _turn(loop, here).is_audited
    assert len(audits) == 1, "once is enough while nothing happens"
    here.send(Cancel(("nobody",)))
    assert [_turn(loop, here).is_audited for _ in range(2)] == [False, True]


def _turn(loop: EngineLoop, here: Connection) -> EngineTick:
    loop.turn()
    tick: EngineTick = here.recv()
    return tick


def test_an_audit_that_finds_something_is_reported_until_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = Pipe()
    updates = Updates()
    engine, _ = engine_for(small_plan(["full"], None), listeners=(updates,))
    loop = EngineLoop(engine, there, updates)

    def fail(*_: object) -> None:
        raise BooksDoNotBalance("one page too many")

    with monkeypatch.context() as patch:
        patch.setattr("quire.serve.engine_process.audit", fail)
        assert [_turn(loop, here).books for _ in range(2)] == ["", "one page too many"]
    here.send(Submit((request("a", 20, 9),)))
    assert _turn(loop, here).books == "one page too many"
    while not (tick := _turn(loop, here)).is_audited:
        assert tick.status is None or tick.books == "one page too many"
    assert tick.books == ""
