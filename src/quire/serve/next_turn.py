"""The HTTP process's side of next turns: renders a conversation that was answered, and reports it to the engine.

answer complete ──▶ rendered in a thread, with the answer as history ──▶ EndTurn to the engine
"""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor

from quire.serve.away import EngineAway
from quire.serve.client import EngineClient
from quire.serve.keys import Tenant
from quire.serve.messages import EndTurn
from quire.text.answer import Delta
from quire.text.next_turn import Ahead, NextTurn, Spoken
from quire.warm.work import TurnEnd

MOST_WAITING = 256
"""Turns that wait to be rendered; beyond that, turns that end are not kept."""


class TurnReporter:
    """Renders the next turns of conversations, one after another."""

    def __init__(self, ahead: Ahead, client: EngineClient) -> None:
        self._ahead, self._client = ahead, client
        self._thread = ThreadPoolExecutor(1, "next-turns")
        self._waiting: dict[object, str] = {}
        """Turns that are rendered, and their scopes."""

    def end(self, spoken: Spoken, answer: Delta, tenant: Tenant) -> None:
        """An answer is complete."""
        if not self._ahead.is_on or len(self._waiting) >= MOST_WAITING:
            return
        self._waiting[turn := object()] = tenant.scope
        loop = asyncio.get_running_loop()
        rendering = self._thread.submit(self._ahead.after, spoken, answer)
        rendering.add_done_callback(
            lambda done: loop.call_soon_threadsafe(self._report, turn, done.exception() or done.result(), tenant)
        )

    def forget(self, scope: str | None) -> None:
        """The cache of a scope is dropped, or that of all: turns that ended before are not computed for it again."""
        self._waiting = {turn: own for turn, own in self._waiting.items() if scope is not None and own != scope}

    def _report(self, turn: object, found: NextTurn | BaseException | None, tenant: Tenant) -> None:
        is_wanted = self._waiting.pop(turn, None) is not None
        if isinstance(found, BaseException):
            raise found
        if found is None or not is_wanted:
            return
        ended = TurnEnd(found.now, found.recurring, found.nexts, tenant.scope, tenant.name)
        with contextlib.suppress(EngineAway):  # whose cache is gone too
            self._client.tell(EndTurn(ended))
