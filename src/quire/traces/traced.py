"""The phases of chosen requests of a running engine, each as a whole when the request has ended.

begin ──▶ its events, and its first tokens (`look`) ──▶ ended ──▶ take
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from quire.core.events import Event, RequestEvent
from quire.core.request import Ending
from quire.engine.engine import Engine
from quire.traces.phases import HAND_OVER, QUEUE, Moments, Phase, RequestPhases

Parent = Mapping[str, str]
"""The span that phases belong to, as headers of W3C trace context."""


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """A request that has ended."""

    name: str
    parent: Parent
    phases: tuple[Phase, ...]
    """Their times by the monotonic clock."""
    preemptions: int
    ending: Ending | None
    """None: the engine had not accepted it."""


@dataclass(frozen=True, slots=True)
class _Open:
    parent: Parent
    phases: RequestPhases
    ended: list[Phase] = field(default_factory=list)


class TracedRequests:
    """For the loop of one engine. Costs a step only what is new about these requests."""

    def __init__(self, engine: Engine, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._engine, self._clock_ns = engine, clock_ns
        self._moments = Moments(clock_ns)
        self._open: dict[str, _Open] = {}
        self._ended: list[RequestTrace] = []
        engine.scheduler.events.subscribe(self)

    def __call__(self, event: Event) -> None:
        if isinstance(event, RequestEvent) and event.request in self._open:
            self._moments(event)

    def begin(self, name: str, parent: Parent) -> None:
        """To be called before the request is submitted."""
        self._open[name] = _Open(parent, RequestPhases(self._clock_ns(), QUEUE))

    def hand_over(self, name: str) -> None:
        """Another engine computes its prompt, before it is submitted here."""
        if name in self._open:
            self._open[name] = _Open(self._open[name].parent, RequestPhases(self._clock_ns(), HAND_OVER))

    def refused(self, name: str) -> None:
        """It was not accepted: it has no phases."""
        self._open.pop(name, None)

    def cancelled(self, name: str) -> None:
        """Of one that was accepted, an event reports this too."""
        if name in self._open and self._open[name].phases.is_handed_over:
            self._end(name, self._clock_ns())

    def take(self) -> tuple[RequestTrace, ...]:
        """Those that have ended. To be called after each iteration of the engine's loop."""
        if not self._open and not self._ended:
            return ()
        scheduler = self._engine.scheduler
        self._moments.look(scheduler.rows, scheduler.steps)
        for name, moments in self._moments.take().items():
            if (one := self._open.get(name)) is None:
                continue
            one.ended.extend(phase for moment in moments if (phase := one.phases.note(moment)) is not None)
            if one.phases.ending is not None:
                self._close(name)
        ended, self._ended = tuple(self._ended), []
        return ended

    def _end(self, name: str, at_ns: int) -> None:
        self._open[name].ended.append(self._open[name].phases.end(at_ns))
        self._close(name)

    def _close(self, name: str) -> None:
        one = self._open.pop(name)
        phases = one.phases
        self._ended.append(RequestTrace(name, one.parent, tuple(one.ended), phases.preemptions, phases.ending))
