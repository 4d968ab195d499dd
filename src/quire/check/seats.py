"""The checker's own books of requests, from events alone: who waits, who runs, who was preempted how often."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from quire.core.events import (
    Event,
    LoadFailed,
    LoadStarted,
    RequestAccepted,
    RequestAdmitted,
    RequestEnded,
    RequestEvent,
    RequestPreempted,
)
from quire.core.request import Ending, Request

LEARNT_FROM = 32
"""Requests that ended weigh so much against the next one in what is expected of outputs."""
MOST_PREEMPTIONS = 2
"""After so many a request comes back only if everyone can stay (decision 11)."""


@dataclass(slots=True, eq=False)
class Seat:
    """A request that was accepted and has not ended."""

    request: Request
    arrival: int
    preemptions: int = 0
    is_running: bool = False
    is_reserved: bool = False
    """Its whole length counts: it was preempted twice, or a tier brought its first tokens."""
    admitted_at: int = -1
    """Counts admissions."""

    @property
    def name(self) -> str:
        return self.request.name


class Seats:
    def __init__(self, requests: Mapping[str, Request], typical_output: float) -> None:
        """`requests`: by name, all that are ever submitted, each before it is."""
        self._requests = requests
        self.of: dict[str, Seat] = {}
        """In the order of arrival."""
        self.typical_output = typical_output
        """Learnt from outputs that reached their end."""
        self.weights: dict[str, float] = {}
        """By tenant: that of its latest request."""
        self._arrivals = self._admissions = 0

    def running(self) -> list[Seat]:
        return [seat for seat in self.of.values() if seat.is_running]

    def waiting(self) -> list[Seat]:
        return [seat for seat in self.of.values() if not seat.is_running]

    def elder(self) -> Seat | None:
        return next(iter(self.of.values()), None)

    def note(self, event: Event) -> None:
        if not isinstance(event, RequestEvent):
            return
        name = event.request
        if isinstance(event, RequestAccepted):
            self.of[name] = Seat(self._requests[name], self._arrivals)
            self.weights[self._requests[name].tenant] = self._requests[name].weight
            self._arrivals += 1
        elif isinstance(event, LoadStarted):
            self.of[name].is_reserved = True
        elif isinstance(event, RequestAdmitted):
            self._admit(self.of[name])
        elif isinstance(event, RequestPreempted | LoadFailed):
            seat = self.of[name]
            seat.preemptions += isinstance(event, RequestPreempted)
            seat.is_running = seat.is_reserved = False
        elif isinstance(event, RequestEnded):
            self._end(self.of.pop(name), event)

    def _admit(self, seat: Seat) -> None:
        seat.is_running, seat.admitted_at = True, self._admissions
        seat.is_reserved = seat.is_reserved or seat.preemptions >= MOST_PREEMPTIONS
        self._admissions += 1

    def _end(self, seat: Seat, event: RequestEnded) -> None:
        assert seat.name == event.request
        if event.ending in (Ending.LENGTH, Ending.STOP):
            self.typical_output += (event.outputs - self.typical_output) / LEARNT_FROM
