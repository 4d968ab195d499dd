"""What the inspector's readers may take of an HTTP process: open streams, and questions to the planner.

streams     a key has a few; of all together, some are left for admins
questions   computed in one thread next to the event loop, with keys taking turns; a key has so many a minute
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from quire.serve.errors import ApiError
from quire.serve.keys import Tenant
from quire.serve.turns import Read, Turns

MOST_STREAMS = 64
STREAMS_OF_KEY = 8
STREAMS_FOR_ADMINS = 16
"""Of `MOST_STREAMS`: those that only admins may open."""
QUESTIONS_AT_ONCE = 4
QUESTIONS_PER_MINUTE = 60
MINUTE = 60.0


class OpenStreams:
    """Counts the inspector's open streams by key."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    @contextmanager
    def opened(self, tenant: Tenant) -> Iterator[None]:
        """Raises 429 if there is no room for one more."""
        self._require_room(tenant)
        self._open[tenant.name] += 1
        try:
            yield
        finally:
            _drop(self._open, tenant.name)

    def _require_room(self, tenant: Tenant) -> None:
        total, own = self._open.total(), self._open[tenant.name]
        most = MOST_STREAMS if tenant.is_admin else MOST_STREAMS - STREAMS_FOR_ADMINS
        if not tenant.is_admin and own >= STREAMS_OF_KEY:
            message = f"{own:,} streams of the inspector are open with this key, {STREAMS_OF_KEY:,} may be: close one"
        elif total >= most:
            whose = "all keys" if tenant.is_admin else "all keys but admins"
            message = f"{total:,} streams of the inspector are open, {whose} may have {most:,}: ask for /v1/inspect"
        else:
            return
        raise ApiError(429, message, "too_many_watchers", retry_seconds=1)


class PlannerQuestions:
    """Limits the questions that each key asks the planner, and computes them one after another."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._turns = clock, Turns()
        self._open: Counter[str] = Counter()
        self._left: dict[str, tuple[float, float]] = {}
        """By key: questions left of this minute, and when that was counted."""

    async def answer(self, question: Callable[[], Read], tenant: Tenant) -> Read:
        """Raises 429 if the key has too many at once, or asked too many within a minute."""
        with self._entered(tenant.name):
            return await self._turns.read(question, tenant.name)

    @contextmanager
    def _entered(self, key: str) -> Iterator[None]:
        if self._open[key] >= QUESTIONS_AT_ONCE:
            message = f"{self._open[key]:,} questions of this key to the planner are open, {QUESTIONS_AT_ONCE:,} may be"
            raise ApiError(429, f"{message}: wait for one", "planner_limit", retry_seconds=1)
        self._spend(key)
        self._open[key] += 1
        try:
            yield
        finally:
            _drop(self._open, key)

    def _spend(self, key: str) -> None:
        """They are refilled evenly, second by second."""
        most, now = QUESTIONS_PER_MINUTE, self._clock()
        left, at = self._left.get(key, (float(most), now))
        left = min(most, left + most * (now - at) / MINUTE)
        if left < 1:
            seconds = math.ceil((1 - left) * MINUTE / most)
            message = f"this key may ask the planner {most:,} times a minute, and has: come back in {seconds} s"
            raise ApiError(429, message, "planner_limit", retry_seconds=seconds)
        self._left[key] = (left - 1, now)


def _drop(open_by_key: Counter[str], key: str) -> None:
    open_by_key[key] -= 1
    if not open_by_key[key]:
        del open_by_key[key]
