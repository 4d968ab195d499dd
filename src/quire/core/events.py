"""What happens in the engine: one frozen class per event. Explanations, metrics, recorders and tests listen to them.

    accepted ─▶ admitted ─▶ (loading ─▶ loaded) ─▶ ended       the life of a request; refused ends it before it begins
        ▲          │            │
        └─preempted┴─load_failed┘

Events are about requests and the cache, not about tokens: a step publishes one event, whatever its number of rows.
Each class appears in docs/events.md with its fields.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar

from quire.core.reasons import Reason, WayBack, Why
from quire.core.request import Ending


@dataclass(frozen=True, slots=True)
class Event:
    name: ClassVar[str] = ""
    step: int
    """Steps that were launched before it."""

    @property
    def label(self) -> str:
        """The code by which metrics count it; empty where it is counted as a whole."""
        return ""

    @property
    def numbers(self) -> dict[str, int]:
        """Its counts by name, for JSON and tables; those at their default are left out."""
        defaults = {one.name: one.default for one in fields(self)}
        counts = {name: getattr(self, name) for name in counted_fields(type(self))}
        return {name: count for name, count in counts.items() if count != defaults[name]}


@dataclass(frozen=True, slots=True)
class RequestEvent(Event):
    request: str


@dataclass(frozen=True, slots=True)
class RequestAccepted(RequestEvent):
    name: ClassVar[str] = "accepted"
    prompt: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class RequestRefused(RequestEvent):
    """It could never run, and why."""

    name: ClassVar[str] = "refused"
    reason: Reason
    tokens: int
    """Prompt and output together."""


@dataclass(frozen=True, slots=True)
class RequestAdmitted(RequestEvent):
    name: ClassVar[str] = "admitted"
    hit_tokens: int
    """Found in the pool; `LoadFinished` reports what a tier brings."""
    tokens: int
    """Known by then: its prompt, and outputs from before it was preempted."""
    preemptions: int
    miss: Why | None = None
    """Why nothing was found; None on a hit."""
    missed_never_kept: int = 0
    missed_tail_evicted: int = 0
    missed_evicted: int = 0
    missed_evicted_waiting: int = 0
    missed_no_room: int = 0
    """Tokens of its prompt that were computed before and not found, by cause; reported when it is first let in."""

    @property
    def label(self) -> str:
        return "" if self.miss is None else self.miss.value


@dataclass(frozen=True, slots=True)
class RequestWaits(RequestEvent):
    """Why it could not start; published when the reason changes."""

    name: ClassVar[str] = "waits"
    reason: Reason


@dataclass(frozen=True, slots=True)
class RequestPreempted(RequestEvent):
    name: ClassVar[str] = "preempted"
    reason: Reason
    times: int
    """How often by now."""
    way_back: WayBack | None = None
    """With a tier: how its tokens come back."""

    @property
    def numbers(self) -> dict[str, int]:
        return {"times": self.times, **(self.way_back.numbers if self.way_back else {})}


@dataclass(frozen=True, slots=True)
class RequestEnded(RequestEvent):
    name: ClassVar[str] = "ended"
    ending: Ending
    outputs: int

    @property
    def label(self) -> str:
        return self.ending.value


@dataclass(frozen=True, slots=True)
class LoadStarted(RequestEvent):
    name: ClassVar[str] = "loading"
    tokens: int
    load: int
    """Its number."""


@dataclass(frozen=True, slots=True)
class LoadFinished(RequestEvent):
    name: ClassVar[str] = "loaded"
    tokens: int
    """From the first on, including those found in the pool."""
    load: int
    preemptions: int


@dataclass(frozen=True, slots=True)
class LoadFailed(RequestEvent):
    name: ClassVar[str] = "load_failed"
    reason: Reason
    tokens: int
    load: int


@dataclass(frozen=True, slots=True)
class CheckpointKept(RequestEvent):
    """A state was kept for later hits, after so many tokens."""

    name: ClassVar[str] = "checkpoint"
    tokens: int


@dataclass(frozen=True, slots=True)
class PrefixKept(RequestEvent):
    """A later prompt that begins with these tokens can go on after them: for routers."""

    name: ClassVar[str] = "kept"
    key: str
    """In hexadecimal."""
    tokens: int


@dataclass(frozen=True, slots=True)
class PrefixEvicted(Event):
    name: ClassVar[str] = "evicted"
    tokens: int
    """At the ends of chains that were evicted."""
    pieces: int
    """Ends of chains, boundaries and groups of spares."""


@dataclass(frozen=True, slots=True)
class RecordsStored(Event):
    """Records that the next step copies to a tier."""

    name: ClassVar[str] = "stored"
    records: int


@dataclass(frozen=True, slots=True)
class PagesCompacted(Event):
    name: ClassVar[str] = "compacted"
    kind: str
    pages: int
    """Moved."""

    @property
    def label(self) -> str:
        return self.kind


@dataclass(frozen=True, slots=True)
class StepLaunched(Event):
    name: ClassVar[str] = "step"
    rows: int
    tokens: int


@dataclass(frozen=True, slots=True)
class TokensDrafted(Event):
    """Draft tokens of a step that came back."""

    name: ClassVar[str] = "drafted"
    drafted: int
    accepted: int


def reason_of(event: Event) -> Reason | None:
    """Why it happened, where an event says."""
    if isinstance(event, RequestAdmitted):
        return None if event.miss is None else Reason(event.miss)
    if isinstance(event, RequestRefused | RequestWaits | RequestPreempted | LoadFailed):
        return event.reason
    return None


Listener = Callable[[Event], None]


class Publisher:
    """Hands each event to every listener, in order."""

    def __init__(self, listeners: Sequence[Listener] = ()) -> None:
        self.step = 0
        """Steps launched so far."""
        self.listeners = tuple(listeners)

    def subscribe(self, listener: Listener) -> None:
        self.listeners = (*self.listeners, listener)

    def publish(self, event: Event) -> None:
        for listener in self.listeners:
            listener(event)


def event_classes() -> dict[str, type[Event]]:
    """Every event, by name."""
    found = [*Event.__subclasses__(), *RequestEvent.__subclasses__()]
    return {one.name: one for one in found if one.name}


def counted_fields(event: type[Event]) -> tuple[str, ...]:
    """Names of the counts that an event carries, which metrics add up."""
    return tuple(one.name for one in fields(event) if one.type == "int" and one.name != "step")
