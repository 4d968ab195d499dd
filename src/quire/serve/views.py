"""The latest view of the engine, for all who look: asked for at most twice a second, and only while somebody does. If
views are expensive, as of a very large pool, they are asked for less often: they never take more than 1 ÷ 250 of the
engine's time.

    watchers ──latest()──▶ EngineViews ──at most one open question──▶ engine
             ◀──Seen─────      └── the last view, kept while the engine is silent, frozen or dead

An engine that hangs has one unread question, however many watch and for however long.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Protocol

from quire.inspect.views import EngineView
from quire.serve.away import EngineAway
from quire.serve.client import EngineClient
from quire.serve.engine_views import ViewQuestion, ViewReply, WholeView

FRAME_SECONDS = 0.5
"""A view that is younger is not asked for again; and how long a frame of a stream waits for a new one."""
LEAST_PAUSES = 250
"""Between two views: at least this many times what the last one cost."""
PATIENCE_SECONDS = 3600.0
"""After this long the engine is asked again: the answer may have been lost."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of the engine now."""

    view: EngineView | None = None
    """The last one; None: no engine has answered yet."""
    unanswered_seconds: float = 0.0
    """Since an open question was asked."""
    step_seconds: float | None = None
    """Mean time of a step between the last two views; None: it was idle, or there is no pair."""


class Views(Protocol):
    """Who has the engine's views: this process, or the hub."""

    async def latest(self, patience_seconds: float) -> Seen: ...

    async def ask(self, question: ViewQuestion, seconds: float) -> ViewReply: ...


class EngineViews:
    """In the process that talks to the engine."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._view: EngineView | None = None
        self._step_seconds: float | None = None
        self._asked_at = 0.0
        self._asking: asyncio.Task[None] | None = None

    async def latest(self, patience_seconds: float) -> Seen:
        """A new view; the last one if the engine has not answered within this time of being asked."""
        if self._asking is None and self._client.is_ready and self._is_old():
            self._asked_at = time.monotonic()
            self._asking = asyncio.ensure_future(self._ask_for_all())
        if self._asking is not None:
            await asyncio.wait({self._asking}, timeout=max(0.0, self._asked_at + patience_seconds - time.monotonic()))
        open_seconds = 0.0 if self._asking is None else time.monotonic() - self._asked_at
        return Seen(self._view, open_seconds, self._step_seconds)

    async def ask(self, question: ViewQuestion, seconds: float) -> ViewReply:
        return await self._client.view(question, seconds)

    def _is_old(self) -> bool:
        cost = 0.0 if self._view is None else self._view.cost_seconds
        return time.monotonic() - self._asked_at >= max(FRAME_SECONDS, LEAST_PAUSES * cost)

    async def _ask_for_all(self) -> None:
        try:
            found = await self._client.view(WholeView(), PATIENCE_SECONDS)
        except EngineAway:
            return  # the last view stays
        finally:
            self._asking = None
        assert isinstance(found, EngineView)
        self._step_seconds = None if self._view is None else step_seconds(self._view, found)
        self._view = found


def step_seconds(before: EngineView, after: EngineView) -> float | None:
    """The mean time of the steps between two views of an engine that had requests at both moments."""
    steps = after.step - before.step
    was_busy = before.requests.running and after.requests.running
    return (after.at - before.at) / steps if steps > 0 and was_busy else None
