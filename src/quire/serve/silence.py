"""An engine that finishes no step: a line in the log, and what the HTTP process itself knows about its requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from quire.serve.client import EngineClient
from quire.serve.messages import RequestState
from quire.serve.progress import Progress

LOOK_SECONDS = 1.0
MOST_NAMES = 16
"""Requests that a line in the log names."""


class Watch:
    """Logs when the engine stops making progress, and when it goes on."""

    def __init__(self, client: EngineClient, tell: Callable[..., None]) -> None:
        self._client, self._tell = client, tell
        self._is_stalled = False

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """An engine that is still loading is not stalled: another event reports when it is ready."""
        client = self._client
        is_stalled = client.is_ready and not client.progress.is_progressing()
        if is_stalled and not self._is_stalled:
            self._tell("engine_stalled", "error", **_seen(client), names=client.open_names()[:MOST_NAMES])
        elif self._is_stalled and client.is_ready and not is_stalled:
            self._tell("engine_resumed", "warning", **_seen(client))
        self._is_stalled = is_stalled


def _seen(client: EngineClient) -> dict[str, Any]:
    since = client.progress.seconds_since or 0.0
    return {"step": client.progress.steps, "seconds": round(since, 1), "requests": len(client.open_names())}


async def silent_reports(client: EngineClient, names: Sequence[str]) -> list[dict[str, Any]]:
    """Status of requests as far as the HTTP processes know it, and for how long the engine has finished no step."""
    known = await client.states_of(names)
    return [_silent(client.progress, known.get(name)) for name in names]


def _silent(progress: Progress, state: RequestState | None) -> dict[str, Any]:
    since = round(progress.seconds_since or 0.0, 1)
    if state is None:
        return {"status": "ended", "code": None, "numbers": {}, "reason": ""}
    status = "waiting" if state.hit_tokens is None else "running"
    numbers = {"seconds_since_step": since, "steps": progress.steps, "output_tokens": state.output_tokens}
    reason = (
        f"the engine does not answer and has finished no step for {since:g} s: as far as it reported, the request was "
        f"{status} and had {state.output_tokens:,} output tokens; look at /health/progress"
    )
    return {"status": status, "code": "engine_silent", "numbers": numbers, "reason": reason}
