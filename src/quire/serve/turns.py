"""Long bodies are read in one thread next to the event loop. Tenants take turns: each has at most one reading there,
and its others wait, so that a tenant waits for at most one reading of each other tenant."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar
from weakref import WeakValueDictionary

Read = TypeVar("Read")
SMALL_BYTES = 16_384
"""Bodies up to this size are read at once, larger ones in the thread."""


class Turns:
    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "asking")
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By tenant, as long as one of its readings runs or waits."""

    async def read_body(self, read: Callable[[], Read], tenant: str, body_bytes: int, is_long: bool = False) -> Read:
        """`is_long`: reading takes time, however small the body is."""
        return await self.read(read, tenant) if is_long or body_bytes > SMALL_BYTES else read()

    async def read(self, read: Callable[[], Read], tenant: str) -> Read:
        """The turn ends with the reading, even if its caller no longer waits for it."""
        loop, lock = asyncio.get_running_loop(), self._locks.setdefault(tenant, asyncio.Lock())
        await lock.acquire()
        reading = self._thread.submit(copy_context().run, read)  # with the names of ignored fields
        reading.add_done_callback(lambda _done: loop.call_soon_threadsafe(lock.release))
        try:
            return await asyncio.wrap_future(reading)
        finally:
            del reading  # an error keeps this frame, which would keep the error, and both the body, until a collection
