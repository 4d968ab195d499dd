"""The order in which waiting requests are let in, and that no request is passed over without a reason.

line      r4 r7 r5 r9 …    by arrival, by priority, or tenants in turn by what they were served; of equal priority those
                           with more in the cache first, unless others have waited for 256 admissions too many
let in       ▲     ▲       in this order; the step passes over at most 8 and lets in at most 32 that compute
passed    ▲     ▲          may not last, may not stay, waits for a prefix, has no page for its first token, or gives way
                           to one that has more of its prompt in the cache
"""

from __future__ import annotations

from collections import deque
from itertools import groupby, takewhile

import numpy as np

from quire.check import state
from quire.check.definitions import Violation, pages_at
from quire.check.laws import Law
from quire.check.preference import Preference, preference_of, shared_pages
from quire.check.prefixes import Prefixes
from quire.check.seats import MOST_PREEMPTIONS, Seat, Seats
from quire.check.staying import Capacity, Pages
from quire.core.events import Event, LoadStarted, RequestAccepted, RequestAdmitted, RequestPreempted, StepLaunched
from quire.core.reasons import Why
from quire.core.request import Request
from quire.core.rules import Policy, Rules
from quire.scheduler.queue import Ticket
from quire.scheduler.scheduler import Scheduler

SIGHT = 8
"""Requests that a step passes over, or leaves to a tier, at most."""
MOST_NEWCOMERS = 32
"""Requests that a step lets in to compute, at most."""


PATIENCE = 256
"""Admissions by which others may go before a request because more of their prompt is cached."""


class Line(Law):
    def __init__(
        self, scheduler: Scheduler, seats: Seats, capacity: Capacity, prefixes: Prefixes, rules: Rules
    ) -> None:
        self.scheduler, self.seats, self.capacity, self.rules = scheduler, seats, capacity, rules
        self.prefixes, self.plan = prefixes, scheduler.plan
        self._line: list[Seat] = []
        """Who waited when the first of this turn was let in."""
        self._newcomers: list[Seat] = []
        """Let in during this turn, to compute."""
        self._served: dict[str, float] = {}
        """By tenant, before this turn."""
        self._preferences: dict[str, Preference] = {}
        """Of those that waited when the first of this turn could be let in."""
        self._claiming = ""
        """The request that took a row from another one in this turn."""
        self._leased = state.leased_sheets(scheduler)
        """By stage, when the first of this turn could be let in."""
        self._admissions = 0
        self._tries = 0
        """Requests that took a row in this turn; those that were not let in gave it back, with what it had freed."""
        self.shared: Pages = []
        """What the request that last took a row was about to share, and those that run with each other."""
        state.watch_starts(scheduler, self._before_start, lambda *_: None)
        state.watch_admission(scheduler, self._before_admission)

    def before_turn(self) -> None:
        self._line, self._newcomers, self._claiming = [], [], ""
        tenants = {seat.request.tenant for seat in self.seats.of.values()}
        self._served = {tenant: state.served(self.scheduler, tenant) for tenant in tenants}
        self._admissions, self._tries = state.admissions(self.scheduler), 0

    def _before_admission(self) -> None:
        self._leased = state.leased_sheets(self.scheduler)
        self._preferences = {name: preference_of(self.scheduler, name) for name in state.waiting(self.scheduler)}

    def on_event(self, event: Event) -> None:
        if isinstance(event, RequestAccepted):
            self._check_bound()
        elif isinstance(event, LoadStarted):
            # it was let in, and computes nothing yet
            self._newcomers = [seat for seat in self._newcomers if seat.name != event.request]
        elif isinstance(event, RequestAdmitted):
            seat = self.seats.of[event.request]
            self._tries -= 1
            if seat is self.seats.elder() or seat.name == self._claiming:
                self._admissions += 1  # whoever takes a row back goes before the line (`claims.py`)
            else:
                self._check_turn(seat)
        elif isinstance(event, RequestPreempted) and event.reason.code is Why.NEEDS_ROW:
            self._claiming = event.reason.requests[0]
        elif isinstance(event, StepLaunched):
            self._check_left_waiting()

    def _before_start(self, row: int, waiting: Ticket) -> None:
        del row
        self._tries += 1
        self.shared = shared_pages(self.scheduler, waiting)

    def _check_bound(self) -> None:
        if (waiting := len(self.seats.waiting())) >= self.rules.queue_bound:
            raise Violation(f"a request was accepted though {waiting} wait in a queue of {self.rules.queue_bound}")

    def _check_turn(self, seat: Seat) -> None:
        """Requests are let in in the order of the line, and few are passed over."""
        line = self._line = self._line or self._in_order(self.seats.waiting())
        place = line.index(seat)
        if self._newcomers and place < line.index(self._newcomers[-1]):
            raise Violation(f"request {seat.name} is let in after {self._newcomers[-1].name}, which is later in line")
        passed = [other.name for other in line[:place] if other not in self._newcomers]
        if len(passed) >= SIGHT:
            raise Violation(f"request {seat.name} is let in past {len(passed)} others, {SIGHT - 1} allowed")
        self._newcomers.append(seat)
        if len(self._newcomers) > MOST_NEWCOMERS:
            raise Violation(f"a step lets {len(self._newcomers)} requests in, {MOST_NEWCOMERS} allowed")

    def _in_order(self, waiting: list[Seat]) -> list[Seat]:
        if self.rules.policy is Policy.FAIR:
            return self._in_turn(waiting)

        def claim(seat: Seat) -> int:
            return -seat.request.priority if self.rules.policy is Policy.PRIORITY else 0

        line = sorted(waiting, key=lambda seat: (claim(seat), seat.arrival))
        if not any(map(self._cached, line)):
            return line
        return [seat for _, own in groupby(line, key=claim) for seat in self._by_cached(list(own))]

    def _by_cached(self, line: list[Seat]) -> list[Seat]:
        """Of equal priority: those at the head that others passed long enough, then the longest cached prefix."""
        patient = list(takewhile(self._is_overdue, line))
        return patient + sorted(line[len(patient) :], key=lambda seat: (-self._cached(seat), seat.arrival))

    def _preference(self, seat: Seat) -> Preference:
        """Who came to wait during this turn was not there to be preferred."""
        return self._preferences.get(seat.name) or preference_of(self.scheduler, seat.name)

    def _cached(self, seat: Seat) -> int:
        return self._preference(seat).cached

    def _is_overdue(self, seat: Seat) -> bool:
        return self._admissions >= self._preference(seat).turn + PATIENCE

    def _in_turn(self, waiting: list[Seat]) -> list[Seat]:
        """The tenant served least goes next, as if each request before had been served its prompt. Within a tenant they
        go by priority, then the patient by arrival, then the others by their cached prefix."""
        own: dict[str, deque[Seat]] = {}
        line = sorted(waiting, key=lambda seat: seat.arrival)
        if any(map(self._cached, waiting)):
            line.sort(
                key=lambda seat: (not self._is_overdue(seat), 0 if self._is_overdue(seat) else -self._cached(seat))
            )
        waiting = sorted(line, key=lambda seat: -seat.request.priority)
        for seat in waiting:
            own.setdefault(seat.request.tenant, deque()).append(seat)
        served = {tenant: self._served[tenant] for tenant in own}
        line = []
        while own:
            tenant = min(own, key=lambda one: (served[one], own[one][0].arrival))
            line.append(own[tenant].popleft())
            served[tenant] += len(line[-1].request.prompt) / self.seats.weights[tenant]
            if not own[tenant]:
                del own[tenant]
        return line

    # ── no request waits without a reason ───────────────────────────────────

    def _check_left_waiting(self) -> None:
        """At the end of a turn that could have let more in."""
        step = state.latest_step(self.scheduler)
        tokens = int(step.counts.sum()) - (0 if step.drafts is None else int(step.drafts.sum()))
        running = self.seats.running()
        if tokens >= self.plan.batch_tokens or len(running) == self.plan.max_requests:
            return
        if len(self._newcomers) == MOST_NEWCOMERS:
            return
        line = self._line or self._in_order(self.seats.waiting())
        passed = [seat for seat in line if seat not in self._newcomers][:SIGHT]
        lasting = self.capacity.lasting(running, self.seats.typical_output) if passed else []
        refused = 0
        for seat in passed:
            if self._cached(seat) < refused and not self._is_overdue(seat):
                return
            if not seat.is_running:
                refused = max(refused, preference_of(self.scheduler, seat.name).cached)
            if not seat.is_running and not self._has_reason(seat, running, lasting):
                raise Violation(f"request {seat.name} waits, and nothing keeps it from running")

    def has_reason(self, seat: Seat) -> bool:
        """Whether anything but rows keeps a waiting request from running."""
        running = self.seats.running()
        return self._has_reason(seat, running, self.capacity.lasting(running, self.seats.typical_output))

    def _has_reason(self, seat: Seat, running: list[Seat], lasting: Pages) -> bool:
        capacity = self.capacity
        length = capacity.likely(seat, self.seats.typical_output)
        before, after = self._preference(seat), preference_of(self.scheduler, seat.name)
        share = max(before.hot_share, after.hot_share)
        newcomer = capacity.at(seat, length)
        if share or before.is_shared or after.is_shared:
            newcomer = capacity.beginning(seat, length, min(before.cached, after.cached))
        leased = [max(own) for own in zip(self._leased, state.leased_sheets(self.scheduler), strict=True)]
        if not capacity.fits(lasting, newcomer, kept_share=share, leased=leased):
            return True
        if seat.preemptions >= MOST_PREEMPTIONS and not self.may_stay(seat, running):
            return True
        if self._is_coming(seat, running) or self._tries or not self._has_first_page(seat):
            return True
        waits_for = state.leased_tokens(self.scheduler, seat.name)
        if waits_for and not self._can_return(seat, running, waits_for):
            return True
        return state.found_tokens(self.scheduler, seat.name) > 0  # which may take a page more than the first token does

    def may_stay(self, seat: Seat, running: list[Seat]) -> bool:
        """Whether everyone fits at the longest, and nobody must give a row to the next tenant that comes."""
        is_crowded = self.rules.policy is Policy.FAIR and len(running) + 1 >= self.plan.max_requests
        return not is_crowded and self.capacity.can_stay(self.capacity.staying([*running, seat]))

    def _can_return(self, seat: Seat, running: list[Seat], leased: int) -> bool:
        """Whether one that continues a lease in a tier has room for all of it, in addition to this step: for copies if
        the pool has the prefix; else for a load, and then it must be able to stay."""
        own = self.prefixes.boundaries(seat.request, len(seat.request.prompt) - 1)
        if any(one.tokens >= leased and self.prefixes.is_proved(one) for one in own):
            return self._has_pages(seat, leased)
        return self.may_stay(seat, running) and self._has_pages(seat, leased)

    def _is_coming(self, seat: Seat, running: list[Seat]) -> bool:
        """A running request computes more of its tokens than the index has."""
        known = self.prefixes.depth(seat.request)
        if any(self.prefixes.shared_units(seat.request, other.request) > known for other in running):
            return True
        return any(self._stops_before_last(seat.request, other) for other in running)

    def _stops_before_last(self, request: Request, other: Seat) -> bool:
        """Another one will keep a boundary before the last token of this prompt."""
        end, tokens = len(request.prompt) - 1, self.prefixes.tokens_of(other.name)
        is_alike = other.request.scope == request.scope and np.array_equal(tokens[:end], request.prompt[:end])
        return is_alike and state.point(self.scheduler, other.name) == end

    def _has_first_page(self, seat: Seat) -> bool:
        """Whether its first token could still be computed in addition to this step, without reuse."""
        return self._has_pages(seat, 0)

    def _has_pages(self, seat: Seat, settled: int) -> bool:
        """Whether it could still have pages for the token after so many, in addition to this step, without sharing."""
        ahead = min(self.plan.lookahead, seat.request.limit - 1)
        stages = [stage for stage in self.plan.stages if stage.kinds]
        return all(
            state.can_take(self.scheduler, number, [pages_at(kind, settled, 1, ahead) for kind in stage.kinds])
            for number, stage in enumerate(stages)
        )
