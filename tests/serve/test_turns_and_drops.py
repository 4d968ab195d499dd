"""A turn that ended before its scope's cache was dropped is not computed for it again."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from quire.serve.next_turn import TurnReporter


@pytest.mark.story
@pytest.mark.parametrize(("dropped", "told"), [("alice", ["bob"]), (None, []), ("carol", ["alice", "bob"])])
def test_what_was_dropped_is_not_computed_for_the_next_turn(dropped: str | None, told: list[str]) -> None:
    """The turns are rendered while the cache is dropped, as it happens when a client drops it right after an answer."""
    rendering, found = threading.Event(), list[str]()
    turn = SimpleNamespace(now=(), recurring=(), nexts=())

    def after(*_: Any) -> Any:
        rendering.wait(60)
        return turn

    async def play() -> None:
        ahead: Any = SimpleNamespace(is_on=True, after=after)
        client: Any = SimpleNamespace(tell=lambda command: found.append(command.turn.scope))
        reporter = TurnReporter(ahead, client)
        nothing: Any = None
        for name in ("alice", "bob"):
            tenant: Any = SimpleNamespace(scope=name, name=name)
            reporter.end(nothing, nothing, tenant)
        reporter.forget(dropped)
        rendering.set()
        reporter._thread.shutdown()
        await asyncio.sleep(0)

    asyncio.run(play())
    assert found == told
