"""Phases of a request, read from its events and the times at which they were published.

    queue ──admitted──▶ prefill ──first token──▶ decode ──ended──▶
      ▲                   ▲    └───────preempted────┴──▶ preempted ──admitted──▶ prefill, or load
      └─load_failed── load ┘ loaded
      └─accepted── hand_over: another engine computes its prompt first

Each phase begins where the one before ends, so the phases of a request add up to its whole time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from quire.core.events import (
    Event,
    LoadFailed,
    LoadFinished,
    LoadStarted,
    RequestAccepted,
    RequestAdmitted,
    RequestEnded,
    RequestEvent,
    RequestPreempted,
    RequestWaits,
)
from quire.core.reasons import Reason
from quire.core.request import Ending
from quire.scheduler.rows import Rows

QUEUE, LOAD, PREFILL, DECODE, PREEMPTED = "queue", "load", "prefill", "decode", "preempted"
HAND_OVER = "hand_over"


@dataclass(frozen=True, slots=True)
class FirstToken(RequestEvent):
    """It has its first token since it was admitted: it decodes from here on. `Moments` adds it to the engine's."""

    name: ClassVar[str] = "first_token"


_OF_PHASES = (
    RequestAccepted,
    RequestWaits,
    RequestAdmitted,
    LoadStarted,
    LoadFinished,
    LoadFailed,
    FirstToken,
    RequestPreempted,
    RequestEnded,
)


@dataclass(frozen=True, slots=True)
class Moment:
    """An event of a request, and when it was published."""

    at_ns: int
    event: RequestEvent


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a request's time."""

    name: str
    begin_ns: int
    end_ns: int
    numbers: Mapping[str, int] = field(default_factory=dict)
    reason: Reason | None = None
    """Why it waited last, why it was preempted, or why its load failed."""
    is_failed: bool = False
    """A load that failed."""


class Moments:
    """Collects the moments of all requests; listens to an engine's events."""

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self._new: dict[str, list[Moment]] = {}
        self._prompts: dict[str, int] = {}
        """Tokens of the prompt of each request that has not ended."""
        self._computing: dict[str, int] = {}
        """Requests without a token since they were admitted, and how many outputs they had."""

    def __call__(self, event: Event) -> None:
        if not isinstance(event, _OF_PHASES):
            return
        name = event.request
        self._new.setdefault(name, []).append(Moment(self._clock_ns(), event))
        if isinstance(event, RequestAccepted):
            self._prompts[name] = event.prompt
        elif isinstance(event, RequestAdmitted):
            self._computing[name] = event.tokens - self._prompts[name]
        elif isinstance(event, RequestPreempted | LoadFailed | RequestEnded):
            self._computing.pop(name, None)
        if isinstance(event, RequestEnded):
            self._prompts.pop(name, None)

    def look(self, rows: Rows, step: int) -> None:
        """Notes which requests have their first token. To be called after each iteration of the engine's loop."""
        for name, outputs in list(self._computing.items()):
            if rows.output_counts[rows.row_of[name]] > outputs:
                del self._computing[name]
                self._new.setdefault(name, []).append(Moment(self._clock_ns(), FirstToken(step, name)))

    def take(self) -> dict[str, list[Moment]]:
        """Those since the last call, by request."""
        new, self._new = self._new, {}
        return new


class RequestPhases:
    """Follows one request through its moments."""

    def __init__(self, begin_ns: int, name: str = QUEUE) -> None:
        self._name, self._begin_ns = name, begin_ns
        self._numbers: dict[str, int] = {}
        self._reason: Reason | None = None
        self._is_failed = False
        self.preemptions = 0
        self.ending: Ending | None = None

    def note(self, moment: Moment) -> Phase | None:
        """The phase that this moment ends, if it ends one."""
        at_ns, event = moment.at_ns, moment.event
        match event:
            case RequestAccepted() if self.is_handed_over:
                return self._next(QUEUE, at_ns)
            case RequestAdmitted(hit_tokens=found, tokens=tokens):
                return self._next(PREFILL, at_ns, found_tokens=found, tokens=tokens)
            case LoadStarted(tokens=tokens):  # published with its admission, of which nothing is computed yet
                self._name = LOAD
                self._numbers["load_tokens"] = tokens
            case LoadFinished(tokens=tokens):
                return self._next(PREFILL, at_ns, found_tokens=tokens)
            case LoadFailed(reason=reason):
                self._reason = reason
                self._is_failed = True
                return self._next(QUEUE, at_ns)
            case FirstToken():
                return self._next(DECODE, at_ns)
            case RequestPreempted(reason=reason):
                self.preemptions += 1
                ended = self._next(PREEMPTED, at_ns, **event.numbers)
                self._reason = reason
                return ended
            case RequestWaits(reason=reason) if self._name == QUEUE:
                self._reason = reason
            case RequestEnded(ending=ending, outputs=outputs):
                self.ending = ending
                return self.end(at_ns, outputs=outputs)
        return None

    @property
    def is_handed_over(self) -> bool:
        """Another engine computes its prompt now: no event reports it."""
        return self._name == HAND_OVER

    def end(self, at_ns: int, **numbers: int) -> Phase:
        """The phase that is open, ended now."""
        self._numbers |= numbers
        return self._next("", at_ns)

    def _next(self, name: str, at_ns: int, **numbers: int) -> Phase:
        at_ns = max(at_ns, self._begin_ns)
        ended = Phase(self._name, self._begin_ns, at_ns, self._numbers, self._reason, self._is_failed)
        self._name, self._begin_ns, self._numbers = name, at_ns, numbers
        self._reason, self._is_failed = None, False
        return ended
