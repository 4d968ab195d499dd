"""Who may be let in, and who may stay: capacity as the plan defines it, counted page by page from the attention.

let in, not the elder          everyone fits at the length that is likely, lookahead reaching to the limits, and
                               pages that several of them hold counted once
let in after 2 preemptions     everyone fits at the longest
a load begins, not the elder's the same
preempted a third time         by an elder that did not run all the while (decision 11)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from quire.check.definitions import Violation, pages_at
from quire.check.laws import Law
from quire.check.seats import MOST_PREEMPTIONS, Seat, Seats
from quire.core.events import Event, LoadStarted, RequestAdmitted, RequestPreempted
from quire.core.units import ceil_div
from quire.plan.plan import Plan

Pages = list[int]
"""Of every kind of every stage, one after another."""


class Capacity:
    """Which requests fit together, each in steady decode at some length."""

    def __init__(self, plan: Plan, known_tokens: Callable[[str], int]) -> None:
        self.plan, self._known_tokens = plan, known_tokens
        self._kinds = [kind for stage in plan.stages for kind in stage.kinds]
        self._most: dict[int, Pages] = {}
        """By length."""

    def at(self, seat: Seat, length: int) -> Pages:
        """What a request takes at a length: all tokens but the last settled, lookahead as far as its limit."""
        ahead = min(self.plan.lookahead, seat.request.limit - length)
        return [pages_at(kind, length - 1, 1, ahead) for kind in self._kinds]

    def beginning(self, seat: Seat, length: int, cached: int) -> Pages:
        """The same with a chunk in flight of the known tokens that are not cached."""
        ahead = min(self.plan.lookahead, seat.request.limit - length)
        chunk = max(1, min(self.plan.batch_tokens, self._known_tokens(seat.name) - cached))
        return [pages_at(kind, length - chunk, chunk, ahead) for kind in self._kinds]

    def most(self, length: int) -> Pages:
        """The most pages of each kind that a request takes on its way to a length, one token at a time."""
        if length not in self._most:
            moments = [(settled, 1, min(self.plan.lookahead, length - settled - 1)) for settled in range(length)]
            self._most[length] = [max(pages_at(kind, *moment) for moment in moments) for kind in self._kinds]
        return self._most[length]

    def likely(self, seat: Seat, typical_output: float) -> int:
        """The length that it is likely to reach."""
        most = self._known_tokens(seat.name) + 1, len(seat.request.prompt) + int(typical_output)
        return min(max(most), seat.request.limit)

    def can_stay(self, pages: Pages) -> bool:
        """Whether these fit next to all that leases may take."""
        return self.fits(pages, leased=[stage.lease_sheets for stage in self.plan.stages if stage.kinds])

    def fits(self, *all_pages: Pages, kept_share: float = 0.0, leased: Sequence[int] = ()) -> bool:
        """Whether these fit together, beside sheets of each stage that are leased and a share of the rest that the
        cache keeps."""
        counts = iter([sum(own) for own in zip(*all_pages, strict=True)])
        taken_by_leases = iter(leased)
        for stage in self.plan.stages:
            taken = [
                ceil_div(max(0, next(counts)) + self.plan.reserved_pages, kind.pages_per_sheet) for kind in stage.kinds
            ]
            room = stage.sheets - (next(taken_by_leases, 0) if stage.kinds else 0)
            if sum(taken) > room * (1 - kept_share):
                return False
        return True

    def staying(self, seats: Sequence[Seat]) -> Pages:
        """What all of them need at most until they end, whatever they yield."""
        return self._sum([self.most(seat.request.limit) for seat in seats])

    def lasting(self, seats: Sequence[Seat], typical_output: float) -> Pages:
        """What they need at the length that they are likely to reach; those with a reservation at their longest."""
        lengths = [seat.request.limit if seat.is_reserved else self.likely(seat, typical_output) for seat in seats]
        return self._sum([self.at(seat, length) for seat, length in zip(seats, lengths, strict=True)])

    def _sum(self, all_pages: Sequence[Pages]) -> Pages:
        return [sum(own) for own in zip(*all_pages, strict=True)] if all_pages else [0] * len(self._kinds)


class Staying(Law):
    def __init__(
        self,
        seats: Seats,
        capacity: Capacity,
        typical_output: Callable[[], float],
        is_excused: Callable[[str], bool],
        shared_pages: Callable[[], Pages],
        *,
        leased_sheets: Callable[[], Sequence[int]],
    ) -> None:
        """`typical_output`: what the scheduler expects; `is_excused`: whether pages are held that admission could not
        count, when this one is the elder; `shared_pages`: what everyone shares as one is let in;
        `leased_sheets`: what is leased, by stage."""
        self.seats, self.capacity, self.is_excused = seats, capacity, is_excused
        self.typical_output, self.shared_pages, self.leased_sheets = typical_output, shared_pages, leased_sheets

    def on_event(self, event: Event) -> None:
        if isinstance(event, RequestAdmitted):
            self._check_admitted(self.seats.of[event.request])
        elif isinstance(event, LoadStarted):
            self._check_loading(self.seats.of[event.request])
        elif isinstance(event, RequestPreempted):
            self._check_preempted(self.seats.of[event.request], event)

    def after_turn(self) -> None:
        if not math.isclose(self.typical_output(), self.seats.typical_output):
            raise Violation(
                f"outputs of {self.typical_output():g} tokens are expected, {self.seats.typical_output:g} are typical"
            )

    def _check_admitted(self, seat: Seat) -> None:
        running, capacity, typical = self.seats.running(), self.capacity, self.seats.typical_output
        if seat is self.seats.elder():
            return
        if seat.preemptions >= MOST_PREEMPTIONS and not capacity.can_stay(capacity.staying([*running, seat])):
            raise Violation(f"request {seat.name} comes back after {seat.preemptions} preemptions and may not stay")
        newcomer = capacity.at(seat, capacity.likely(seat, typical))
        shared = [-pages for pages in self.shared_pages()]
        if not capacity.fits(capacity.lasting(running, typical), newcomer, shared, leased=self.leased_sheets()):
            raise Violation(f"request {seat.name} is let in, and those that run are likely to need its pages")

    def _check_loading(self, seat: Seat) -> None:
        everyone = self.capacity.staying(self.seats.running())
        if seat is not self.seats.elder() and not self.capacity.can_stay(everyone):
            raise Violation(f"a load begins for request {seat.name}, which may have to leave before it ends")

    def _check_preempted(self, seat: Seat, event: RequestPreempted) -> None:
        if event.times != seat.preemptions + 1:
            raise Violation(f"request {seat.name} is preempted once more after {seat.preemptions} times: {event}")
        elder = self.seats.elder()
        if seat.preemptions < MOST_PREEMPTIONS or (elder is not None and self.is_excused(elder.name)):
            return
        if elder is None or elder is seat or (elder.is_running and elder.admitted_at < seat.admitted_at):
            raise Violation(
                f"request {seat.name} is preempted after {seat.preemptions} times, and no elder came in since it did"
            )
