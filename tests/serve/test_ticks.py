"""What the engine's process reports to the HTTP process, and when."""

from __future__ import annotations

from multiprocessing import Pipe

import pytest

from quire.serve.engine_process import STATUS_SECONDS, EngineLoop, Updates
from quire.serve.messages import EngineTick, Submit
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
    assert turn().status is None
    here.send(Submit((request("a", 20, 9),)))
    ticks = [turn() for _ in range(20)]
    running = [tick.status.running if tick.status is not None else None for tick in ticks]
    first, last = running.index(1), running.index(0)
    assert not ticks[first].is_idle
    assert all(not tick.updates and not tick.tokens for tick in ticks[:first]), "a token came before the status"
    assert ticks[last].is_idle
    assert all(one is None for one in running[first + 1 : last] + running[last + 1 :])
    alone = [tokens for tick in ticks for tokens in tick.tokens.values()]
    others = [update for tick in ticks for update in tick.updates]
    assert sum(map(len, alone)) + sum(len(update.tokens) for update in others) == 9
    assert len(alone) >= 7, "tokens in the middle of an answer are no updates of their own"
    loop.clock = lambda: STATUS_SECONDS
    assert turn().status is not None
