"""The events of a request's life come in one order, on every path through the scheduler.

accepted ─▶ waiting ─admitted─▶ admitted ─loading─▶ loading ─loaded─▶ running ─▶ ended
               ▲                   │ step              │                 │
               └── preempted, load_failed ◀────────────┴─────────────────┘
"""

from __future__ import annotations

from quire.check.definitions import Violation
from quire.check.laws import Law
from quire.core.events import (
    CheckpointKept,
    Event,
    LoadFailed,
    LoadFinished,
    LoadStarted,
    PrefixKept,
    RequestAccepted,
    RequestAdmitted,
    RequestEnded,
    RequestEvent,
    RequestPreempted,
    RequestWaits,
    StepLaunched,
)

WITH_A_ROW = ("admitted", "loading", "running")
NEXT: dict[type[RequestEvent], tuple[tuple[str, ...], str]] = {
    RequestAccepted: (("unknown",), "waiting"),
    RequestWaits: (("waiting",), "waiting"),
    RequestAdmitted: (("waiting",), "admitted"),
    LoadStarted: (("admitted",), "loading"),
    LoadFinished: (("loading",), "running"),
    LoadFailed: (("loading",), "waiting"),
    RequestPreempted: (WITH_A_ROW, "waiting"),
    CheckpointKept: (("admitted", "running"), ""),
    PrefixKept: (("admitted", "running"), ""),
    RequestEnded: (("waiting", *WITH_A_ROW), "unknown"),
}
"""By event: in which states it may come, and the state after it; none: the same. Refused requests have no life."""


class Lives(Law):
    def __init__(self) -> None:
        self._state: dict[str, str] = {}

    def on_event(self, event: Event) -> None:
        if isinstance(event, StepLaunched):
            self._state = {name: "running" if one == "admitted" else one for name, one in self._state.items()}
        elif isinstance(event, RequestEvent) and type(event) in NEXT:
            self._advance(event)

    def _advance(self, event: RequestEvent) -> None:
        states, after = NEXT[type(event)]
        state = self._state.pop(event.request, "unknown")
        if state not in states:
            raise Violation(f"request {event.request} is {state}, and the event {event.name} comes")
        if after != "unknown":
            self._state[event.request] = after or state
