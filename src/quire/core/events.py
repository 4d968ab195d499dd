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
    """Something that happened in an engine, after `step` steps were launched."""

    name: ClassVar[str] = ""
    step: int
    """Steps that were launched before it."""

    @property
    def label(self) -> str:
        """The code by which metrics count it; empty where it is counted as a whole."""
        return ""

    @property
    def numbers(self) -> dict[str, int]:
        """Its counts by name, for JSON and tables; counts that equal their default are left out."""
        defaults = {one.name: one.default for one in fields(self)}
        counts = {name: getattr(self, name) for name in counted_fields(type(self))}
        return {name: count for name, count in counts.items() if count != defaults[name]}


@dataclass(frozen=True, slots=True)
class RequestEvent(Event):
    """Something that happened to one request."""

    request: str


@dataclass(frozen=True, slots=True)
class RequestAccepted(RequestEvent):
    """It waits in the queue now."""

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
    """It has a row; `hit_tokens` of its known tokens were found in the cache."""

    name: ClassVar[str] = "admitted"
    hit_tokens: int
    """Found in the pool; `LoadFinished` reports what a tier loads."""
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
    """Tokens of its prompt that were computed before and not found, by cause; reported at its first admission."""

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
    """Its pages went to another request; it waits again, and keeps its outputs."""

    name: ClassVar[str] = "preempted"
    reason: Reason
    times: int
    """Preemptions of this request so far."""
    way_back: WayBack | None = None
    """With a tier: how its tokens come back."""

    @property
    def numbers(self) -> dict[str, int]:
        return {"times": self.times, **(self.way_back.numbers if self.way_back else {})}


@dataclass(frozen=True, slots=True)
class RequestEnded(RequestEvent):
    """It is over, with this many outputs."""

    name: ClassVar[str] = "ended"
    ending: Ending
    outputs: int

    @property
    def label(self) -> str:
        return self.ending.value


@dataclass(frozen=True, slots=True)
class LoadStarted(RequestEvent):
    """A tier starts to load its first tokens."""

    name: ClassVar[str] = "loading"
    tokens: int
    load: int
    """Its number."""


@dataclass(frozen=True, slots=True)
class LoadFinished(RequestEvent):
    """The tokens are loaded: the request continues after them."""

    name: ClassVar[str] = "loaded"
    tokens: int
    """From the first on, including those found in the pool."""
    load: int
    preemptions: int


@dataclass(frozen=True, slots=True)
class LoadFailed(RequestEvent):
    """The tokens cannot be loaded: the request computes them."""

    name: ClassVar[str] = "load_failed"
    reason: Reason
    tokens: int
    load: int


@dataclass(frozen=True, slots=True)
class CheckpointKept(RequestEvent):
    """A recurrent state after `tokens` tokens was kept for later hits."""

    name: ClassVar[str] = "checkpoint"
    tokens: int


@dataclass(frozen=True, slots=True)
class PrefixKept(RequestEvent):
    """A later prompt that begins with these tokens can continue after them: for routers."""

    name: ClassVar[str] = "kept"
    key: str
    """In hexadecimal."""
    tokens: int


@dataclass(frozen=True, slots=True)
class PrefixEvicted(Event):
    """Cached prefixes were evicted to make room."""

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
    """Pages of a kind were moved together, which freed a sheet."""

    name: ClassVar[str] = "compacted"
    kind: str
    pages: int
    """Moved."""

    @property
    def label(self) -> str:
        return self.kind


@dataclass(frozen=True, slots=True)
class StepLaunched(Event):
    """A step went to the runner, for this many rows and tokens."""

    name: ClassVar[str] = "step"
    rows: int
    tokens: int


@dataclass(frozen=True, slots=True)
class TokensDrafted(Event):
    """Draft tokens of a step that came back."""

    name: ClassVar[str] = "drafted"
    drafted: int
    accepted: int


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
