"""What happens, told once: explanations, metrics, recorders and tests all listen to this one stream.

    accepted ─▶ admitted ─▶ ended          the usual life of a request; refused ends it before it begins
        ▲          │
        └─preempted┘   loading ─▶ loaded | load_failed

Events are about requests and the cache, not about tokens: a step tells one, however many rows it has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple


class What(str, Enum):
    """Each name appears in docs/events.md with what its numbers mean."""

    __hash__ = str.__hash__

    ACCEPTED = "accepted"
    REFUSED = "refused"
    ADMITTED = "admitted"
    WAITS = "waits"
    PREEMPTED = "preempted"
    ENDED = "ended"
    LOADING = "loading"
    LOADED = "loaded"
    LOAD_FAILED = "load_failed"
    EVICTED = "evicted"
    CHECKPOINT = "checkpoint"
    STORED = "stored"
    KEPT = "kept"
    COMPACTED = "compacted"
    STEP = "step"
    DRAFTED = "drafted"


class Event(NamedTuple):
    what: What
    step: int
    """How many steps were launched before it."""
    request: str = ""
    """Whom it concerns; empty where it concerns nobody in particular."""
    reason: str = ""
    numbers: Mapping[str, int] = MappingProxyType({})


Listener = Callable[[Event], None]
