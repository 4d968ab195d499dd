"""Rows that go back to tenants below their share: who gives, who gets, and that nobody waits for one for long.

share          a row for everyone who is here, and the other rows by weight
gives          the tenant that has most above its share; its newest request, never the elder, one that is to stay last
gets           a tenant without a row; its first request that was never sent away
               with a row already: only up to half of its share, if served less, and not from a request that is to stay
in time        a tenant without a row that only rows keep from running has one after as many steps as tenants are here
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction

from quire.check import state
from quire.check.definitions import Violation
from quire.check.laws import Law
from quire.check.seats import Seat, Seats
from quire.core.events import Event, LoadFailed, RequestAdmitted, RequestPreempted, StepLaunched
from quire.core.reasons import Why
from quire.core.rules import Policy
from quire.scheduler.scheduler import Scheduler


class Claims(Law):
    def __init__(
        self, scheduler: Scheduler, seats: Seats, policy: Policy, has_other_reason: Callable[[Seat], bool]
    ) -> None:
        """`has_other_reason`: whether anything but rows keeps a waiting request from running."""
        self.scheduler, self.seats, self.policy, self.has_other_reason = scheduler, seats, policy, has_other_reason
        self._due = ""
        """The request that a row was taken back for, until it is let in."""
        self._took: set[str] = set()
        """Requests that took a row from another one, and did not lose it by a load that failed."""
        self._waits: Counter[str] = Counter()
        """By tenant without a row: steps in which only rows kept it from running."""
        self._was_full = False

    def before_turn(self) -> None:
        self._was_full = self._is_full()

    def on_event(self, event: Event) -> None:
        if isinstance(event, RequestPreempted) and event.reason.code is Why.NEEDS_ROW:
            self._check(self.seats.of[event.request], self.seats.of[event.reason.requests[0]])
        elif isinstance(event, RequestAdmitted):
            if self._due not in ("", event.request):
                raise Violation(f"a row was taken back for request {self._due}, and {event.request} gets it")
            self._due = ""
        elif isinstance(event, LoadFailed):
            self._took.discard(event.request)
        elif isinstance(event, StepLaunched) and self.policy is Policy.FAIR:
            self._check_waits()

    def _is_full(self) -> bool:
        return len(self.seats.running()) == self.scheduler.plan.max_requests

    def _held(self) -> Counter[str]:
        return Counter(seat.request.tenant for seat in self.seats.running())

    def _share(self, tenant: str) -> Fraction:
        """In rows, of a tenant that is here."""
        weights = {one: Fraction(self.seats.weights[one]) for one in {s.request.tenant for s in self.seats.of.values()}}
        others = max(0, self.scheduler.plan.max_requests - len(weights))
        return 1 + others * weights[tenant] / sum(weights.values())

    def _check(self, gives: Seat, gets: Seat) -> None:
        held, giver, taker = self._held(), gives.request.tenant, gets.request.tenant
        if self.policy is not Policy.FAIR or not self._is_full():
            raise Violation(f"request {gives.name} gives its row away, and rows are free or not shared")
        if gives is self.seats.elder():
            raise Violation(f"the elder, {gives.name}, gives its row to {gets.name}")
        above = {tenant: held[tenant] - self._share(tenant) for tenant in held}
        if above[giver] <= 0 or above[giver] < max(above.values()):
            raise Violation(f"tenant {giver or '(none)'} gives a row and is not the one furthest above its share")
        if held[taker] and held[taker] + 1 > self._share(taker) / 2:
            raise Violation(f"tenant {taker or '(none)'} gets a row with {held[taker]} of {self._share(taker)} already")
        if gets.is_running or gets.preemptions or gets.name in self._took:
            raise Violation(f"request {gets.name} takes a row from another one more than once, or has been preempted")
        own = [seat for seat in self.seats.running() if seat.request.tenant == giver and seat is not self.seats.elder()]
        newest = max(own, key=lambda seat: (not seat.is_reserved, seat.arrival))
        if gives is not newest:
            raise Violation(f"request {gives.name} gives its row away, {newest.name} should")
        served = state.served(self.scheduler, taker) < state.served(self.scheduler, giver)
        if held[taker] and (gives.is_reserved or not served):
            raise Violation(f"request {gives.name} gives its row to {gets.name}, whose tenant has one and no claim")
        self._took.add(gets.name)
        self._due = gets.name

    def _check_waits(self) -> None:
        """Each step gives one row back, so the last of several tenants waits as many steps as there are."""
        held = self._held()
        here = {seat.request.tenant for seat in self.seats.of.values()}
        gives = any(held[tenant] > self._share(tenant) for tenant in held)
        for tenant in here:
            first = self._first_of(tenant)
            is_due = self._was_full and self._is_full() and gives and not held[tenant] and first is not None
            if not is_due or first is None or self.has_other_reason(first):
                self._waits[tenant] = 0
                continue
            self._waits[tenant] += 1
            if self._waits[tenant] > len(here):
                raise Violation(
                    f"tenant {tenant or '(none)'} has no row, {first.name} could run, and others have more than "
                    f"their share for {self._waits[tenant]} steps"
                )

    def _first_of(self, tenant: str) -> Seat | None:
        own = [seat for seat in self.seats.waiting() if seat.request.tenant == tenant and not seat.preemptions]
        return min(own, key=lambda seat: (-seat.request.priority, seat.arrival), default=None)
