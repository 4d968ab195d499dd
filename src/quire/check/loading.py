"""Loads from a tier, from events: each ends by its deadline, a second try by the first one's, and failure is final."""

from __future__ import annotations

from collections.abc import Callable

from quire.check.definitions import Violation
from quire.check.laws import Law
from quire.core.events import Event, LoadFailed, LoadFinished, LoadStarted, RequestEnded, RequestPreempted

Ending = LoadFinished | LoadFailed | RequestPreempted | RequestEnded


class Loading(Law):
    def __init__(self, now: Callable[[], int], load_seconds: float, has_less: Callable[[int], bool]) -> None:
        """`has_less`: whether the tier reported of a failed load that it may bring less."""
        self.now, self.load_seconds, self.has_less = now, load_seconds, has_less
        self._open: dict[str, tuple[float, int]] = {}
        """By request: the deadline of its load, and when that began."""
        self._again: dict[str, float] = {}
        """Requests that may try again, by the deadline of their first load."""
        self._failed: set[str] = set()
        """Requests that must compute their tokens."""

    def is_awaited_by(self, request: str) -> bool:
        return request in self._open

    def has_failed(self, request: str) -> bool:
        """Whether a load failed and may not be tried again: the request computes its tokens."""
        return request in self._failed

    def on_event(self, event: Event) -> None:
        if isinstance(event, LoadStarted):
            self._begin(event.request)
        elif isinstance(event, Ending):
            name = event.request
            deadline, _ = self._open.pop(name, (0.0, 0))
            if isinstance(event, LoadFailed):
                self._fail(name, deadline, event.load)
            elif not isinstance(event, LoadFinished):
                self._again.pop(name, None)
                self._failed.discard(name)

    def _begin(self, name: str) -> None:
        if name in self._failed:
            raise Violation(f"a load of request {name} failed, and it asks the tier again")
        if name in self._open:
            raise Violation(f"request {name} waits for two loads")
        self._open[name] = self._again.pop(name, self.now() + self.load_seconds), self.now()

    def _fail(self, name: str, deadline: float, number: int) -> None:
        if self.has_less(number):
            self._again[name] = deadline
        else:
            self._failed.add(name)

    def after_turn(self) -> None:
        for name, (deadline, begun) in self._open.items():
            if self.now() > max(deadline, begun):
                raise Violation(f"request {name} still waits for its load at {self.now()}, past {deadline:g}")

    def at_end(self) -> None:
        if self._open:
            raise Violation(f"every request has ended, and {min(self._open)} waits for a load")
