"""What events say, for people: why something happened, and what a request reused."""

from __future__ import annotations

from quire.core.events import (
    Event,
    LoadFailed,
    LoadFinished,
    RequestAdmitted,
    RequestPreempted,
    RequestRefused,
    RequestWaits,
)
from quire.core.reasons import Reason


def reason_of(event: Event) -> Reason | None:
    """Why it happened, where an event says."""
    if isinstance(event, RequestAdmitted):
        return None if event.miss is None else Reason(event.miss)
    if isinstance(event, RequestRefused | RequestWaits | RequestPreempted | LoadFailed):
        return event.reason
    return None


def reused_tokens(event: Event) -> int | None:
    """Tokens of a new request's prompt that were found in the pool or loaded from a tier; None if the event does not
    say. The latest such event counts."""
    if isinstance(event, RequestAdmitted) and not event.preemptions:
        return event.hit_tokens
    if isinstance(event, LoadFinished) and not event.preemptions:
        return event.tokens
    return None
