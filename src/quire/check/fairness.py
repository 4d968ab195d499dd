"""Fair shares, counted again from steps: tokens computed for each tenant by its weight, and no credit for absence."""

from __future__ import annotations

import math

from quire.check import state
from quire.check.definitions import Violation
from quire.check.laws import Law
from quire.check.seats import Seats
from quire.core.events import Event, RequestAccepted, StepLaunched
from quire.core.request import Request
from quire.core.rules import Policy, Rules
from quire.scheduler.scheduler import Scheduler


class Fairness(Law):
    def __init__(self, scheduler: Scheduler, seats: Seats, requests: dict[str, Request], rules: Rules) -> None:
        self.scheduler, self.seats, self.requests, self.rules = scheduler, seats, requests, rules
        self.served: dict[str, float] = {}

    def on_event(self, event: Event) -> None:
        if isinstance(event, RequestAccepted):
            self._enter(self.requests[event.request].tenant)
        elif isinstance(event, StepLaunched) and self.rules.policy is Policy.FAIR:
            self._charge()

    def _enter(self, tenant: str) -> None:
        """A tenant that comes back starts level with the least served of those who are here, or where it was."""
        here = {seat.request.tenant for seat in self.seats.of.values()}
        if tenant not in here:
            level = min((self.served[other] for other in here), default=0.0)
            self.served[tenant] = max(self.served.get(tenant, 0.0), level)

    def _charge(self) -> None:
        step = state.latest_step(self.scheduler)
        names = {row: name for name, row in state.running(self.scheduler).items()}
        for row, count in zip(step.rows.tolist(), step.counts.tolist(), strict=True):
            tenant = self.requests[names[row]].tenant
            self.served[tenant] += count / self.seats.weights[tenant]

    def after_turn(self) -> None:
        for tenant, tokens in self.served.items():
            booked = state.served(self.scheduler, tenant)
            if not math.isclose(booked, tokens, abs_tol=1e-6):
                raise Violation(
                    f"tenant {tenant or '(none)'} was served {tokens:g} tokens, the fair shares say {booked:g}"
                )
