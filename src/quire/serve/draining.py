"""What a signal does to a server.

signal ──▶ draining: new calls are refused with 503, /health/ready is false, calls in progress continue
       ──▶ the last one ends, or drain_seconds pass ──▶ the server ends
a second signal ends it at once
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable

from quire.serve import logs
from quire.serve.allowance import Allowances
from quire.serve.client import EngineClient

SIGNALS = (signal.SIGINT, signal.SIGTERM)
LOOK_SECONDS = 0.05


class Draining:
    def __init__(self, allowances: Allowances, client: EngineClient, seconds: float, end: Callable[[], None]) -> None:
        """`end`: ends the calls that are left, with an error, and the server."""
        self._allowances, self._client, self._seconds, self._end = allowances, client, seconds, end
        self.on_begin: Callable[[], None] = lambda: None
        self._task: asyncio.Task[None] | None = None

    def listen(self) -> None:
        for number in SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self.stop)

    def stop(self) -> None:
        if self._allowances.is_draining:
            self._client.is_hurried = True
            self._end()
            return
        self._allowances.is_draining = True
        logs.write("draining", requests=self._allowances.total)
        self.on_begin()
        self._task = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._seconds):
                while self._allowances.total:
                    await asyncio.sleep(LOOK_SECONDS)
        self._end()
