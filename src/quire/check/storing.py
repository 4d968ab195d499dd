"""What a tier takes is read after the copies that were due when it was named: they may bring it, or move it."""

from __future__ import annotations

from quire.check import state
from quire.check.definitions import Violation
from quire.check.laws import Law
from quire.core.events import Event, RecordsStored, StepLaunched
from quire.scheduler.scheduler import Scheduler


class Storing(Law):
    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._after: list[int] = []
        """Of each record that is due: the copies that come before it."""

    def before_turn(self) -> None:
        if not state.stores_due(self.scheduler):
            self._after = []  # with a step that failed they were given up

    def on_event(self, event: Event) -> None:
        if isinstance(event, RecordsStored):
            self._after += [state.copies_due(self.scheduler)] * event.records
        elif isinstance(event, StepLaunched):
            self._check([store.after for store in state.latest_step(self.scheduler).stores])

    def _check(self, after: list[int]) -> None:
        if after != self._after:
            raise Violation(f"a tier reads after {after} copies what it was given after {self._after} of them")
        self._after = []
