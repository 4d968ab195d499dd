"""Updates of one call that its reader has not taken yet.

There is one update for each token, so waiting must cost little: the time limit is one timer that outlives many waits,
and is set anew only when it fires too early.
"""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

Update = TypeVar("Update")


class Mailbox(Generic[Update]):
    """For one reader."""

    def __init__(self) -> None:
        self._arrived: list[Update] = []
        self._waiting: asyncio.Future[None] | None = None
        self._ends_at = 0.0
        """When the wait that is under way ends, by the event loop's clock."""
        self._timer: asyncio.TimerHandle | None = None

    def put(self, update: Update) -> None:
        self._arrived.append(update)
        self._wake()

    async def take(self, seconds: float) -> list[Update]:
        """All that has arrived, at least one; none after `seconds` without any."""
        if not self._arrived:
            await self._wait(seconds)
        arrived, self._arrived = self._arrived, []
        return arrived

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _wait(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._ends_at = loop.time() + max(0.0, seconds)
        if self._timer is None or self._timer.when() > self._ends_at:
            self.close()
            self._timer = loop.call_at(self._ends_at, self._look_at_time)
        self._waiting = loop.create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None

    def _look_at_time(self) -> None:
        """The timer was set by an earlier wait: this one may have time left."""
        self._timer, loop = None, asyncio.get_running_loop()
        if self._waiting is None:
            return
        if loop.time() < self._ends_at:
            self._timer = loop.call_at(self._ends_at, self._look_at_time)
        else:
            self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
