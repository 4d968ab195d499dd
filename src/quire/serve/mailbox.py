"""Updates of one call that have not been read yet.

    put ──▶ arrived ──▶ deliver ──▶ the reader, at once, if it takes them
                                └─▶ else the task that waits in `take` is woken

There is one update for each token, so waiting must cost little. A task is woken only for what the reader leaves, and
the time limit is one timer that outlives many updates, and is set anew only when it fires too early.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Generic, TypeVar

Update = TypeVar("Update")


class Mailbox(Generic[Update]):
    """For one task."""

    def __init__(self) -> None:
        self.reader: Callable[[list[Update]], bool] | None = None
        """Called while the task waits: removes what it reads from the list, and returns whether the task may wait
        on. Only the task reads while it does anything else, so updates are read in order."""
        self._arrived: list[Update] = []
        self._waiting: asyncio.Future[None] | None = None
        self._since, self._patience, self._ends_at = 0.0, 0.0, 0.0
        """Of the wait that is under way, by the event loop's clock: when something was read last, how long it waits
        for more, and when it ends in any case."""
        self._clock: Callable[[], float] = time.monotonic
        self._timer: asyncio.TimerHandle | None = None

    def put(self, update: Update) -> None:
        """Something of the step that is being read; `deliver` follows."""
        self._arrived.append(update)

    def deliver(self) -> None:
        waiting = self._waiting
        if waiting is None or waiting.done():
            return
        try:
            if self.reader is not None and self.reader(self._arrived):
                self._since = self._clock()
                return
        except Exception as error:
            waiting.set_exception(error)
        else:
            self._wake()

    async def take(self, patience: float, seconds: float) -> list[Update]:
        """All that has arrived and the reader has left. Empty if the reader asked to be woken, after `patience` without
        anything new, and after `seconds`."""
        if not self._arrived:
            await self._wait(patience, seconds)
        arrived, self._arrived = self._arrived, []
        return arrived

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _wait(self, patience: float, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._clock = loop.time
        self._since, self._patience = loop.time(), patience
        self._ends_at = self._since + max(0.0, seconds)
        if self._timer is None or self._timer.when() > self._wakes_at:
            self.close()
            self._timer = loop.call_at(self._wakes_at, self._look_at_time)
        self._waiting = loop.create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None

    @property
    def _wakes_at(self) -> float:
        return min(self._since + self._patience, self._ends_at)

    def _look_at_time(self) -> None:
        """The timer was set by an earlier wait, or before something was read: there may be time left."""
        self._timer, loop = None, asyncio.get_running_loop()
        if self._waiting is None:
            return
        if loop.time() < self._wakes_at:
            self._timer = loop.call_at(self._wakes_at, self._look_at_time)
        else:
            self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
