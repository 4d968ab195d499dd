"""All events of the engine, for tests of what is said of each."""

from __future__ import annotations

from quire.core.events import Event, RequestEvent


def event_classes() -> dict[str, type[Event]]:
    """By name."""
    found = [*Event.__subclasses__(), *RequestEvent.__subclasses__()]
    return {one.name: one for one in found if one.name}
