"""Errors of an engine that is not available, each with its code in the API."""

from __future__ import annotations

from typing import ClassVar

from quire.core.errors import QuireError


class EngineAway(QuireError):
    """The engine is not available now: base of the errors below."""

    code: ClassVar[str]
    """The error code in the API."""


class EngineGone(EngineAway):
    """The engine's process died, and all requests in progress with it: try again soon."""

    code = "engine_gone"


class EngineStarting(EngineAway):
    """The engine accepts no requests yet: it is starting, for the first time or again."""

    code = "engine_starting"


class EngineSilent(EngineAway):
    """The engine did not answer a question in time."""

    code = "engine_silent"


class EngineStopping(EngineAway):
    """The server stops, and the engine with it: another server must answer."""

    code = "draining"


def gone(lost: str = "") -> EngineGone:
    """`lost`: which rank the engine lost, and how; empty: it died otherwise."""
    what = lost or "the engine's process died"
    return EngineGone(f"{what}; it is being started again: send the request once more")
