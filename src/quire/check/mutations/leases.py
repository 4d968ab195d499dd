"""Planted bugs of leases: evicted, taken over, counted wrongly, ended too early or too late, forgotten by a request."""

from __future__ import annotations

from typing import Any

import numpy as np

from quire.check.mutations.base import Mutation, Original, always, nothing, replaced
from quire.core.reasons import Why
from quire.core.units import ceil_div
from quire.plan.plan import KindPlan, StagePlan
from quire.prefix import lease_sizes
from quire.prefix.eviction import Eviction
from quire.prefix.hit import Hit, no_hit
from quire.prefix.index import PrefixIndex
from quire.prefix.lease_pages import LeasePages
from quire.prefix.lease_sizes import Pages
from quire.prefix.leases import Lease, LeaseAnswer, LeaseEnding, Leases, LeaseTerms
from quire.prefix.leasing import Leasing
from quire.scheduler.admission import Admission
from quire.scheduler.queue import Ticket
from quire.scheduler.room import Room
from quire.scheduler.scheduler import Scheduler


def _as_others(is_current: Original) -> Original:
    del is_current

    def wrong(self: Eviction, rank: float, found: int) -> bool:
        nodes = self.nodes
        if found < 0:
            return -found in self.boundaries.groups and self.boundaries.groups[-found].rank == rank
        is_candidate = nodes.is_there[found] and (not nodes.children[found] or nodes.is_boundary[found])
        return bool(is_candidate and nodes.rank[found] == rank)

    return wrong


def _past_leases(bundle_begin: Original) -> Original:
    def wrong(self: PrefixIndex, chain: Any, size_bytes: float) -> int:
        leased = self.nodes.leased.copy()
        self.nodes.leased[:] = 0
        begin: int = bundle_begin(self, chain, size_bytes)
        self.nodes.leased[:] = leased
        return begin

    return wrong


def _first_stage(fits: Original) -> Original:
    del fits
    return lambda self, pages: self.takes.sheets(0, pages[0]) <= self._stages[0].lease_sheets


def _unmarked_by_moves(compact: Original) -> Original:
    def wrong(self: Room) -> bool:
        is_done: bool = compact(self)
        if is_done:
            self.index.nodes.leased[:] = 0
        return is_done

    return wrong


def _without_tails(count: Original) -> Original:
    def wrong(self: LeasePages, stage: int, kind: int, *rest: Any) -> Any:
        return 0 if kind in self._coverage.tails[stage] else count(self, stage, kind, *rest)

    return wrong


def _shared_too(let_go: Original) -> Original:
    def wrong(self: Leases, lease: Lease, ending: LeaseEnding) -> None:
        let_go(self, lease, ending)
        shared = self._nodes.leased[lease.chain] > 0
        for stage, kinds in enumerate(self._coverage.growing):
            for kind in kinds:
                self.pages[stage][kind] -= self.takes.count(stage, kind, lease.chain[shared], lease.chain[:0], 0)

    return wrong


def _too_early(expire: Original) -> Original:
    return lambda self, now: expire(self, now + 3)


def _everyone(break_all: Original) -> Original:
    return lambda self, _scope, ending: break_all(self, b"", ending)


def _of_nothing(settle: Original) -> Original:
    return lambda self, name, _hit, now: settle(self, name, no_hit(Why.NO_OVERLAP), now)


def _for_its_prompt(pages_up_to: Original) -> Original:
    return lambda self, length: pages_up_to(self, max(1, length // 2))


def _forgotten(settle: Original) -> Original:
    del settle
    return lambda self, name, *_rest: self.pending.pop(name, None)


def _first_of_session(session: Original) -> Original:
    del session

    def wrong(self: Leasing, *_request: Any) -> str | None:
        own = sorted(self._leases.held.keys() - self._leases.pending.keys())
        return own[0] if own else None

    return wrong


def _one_more_page(count: Original) -> Original:
    return lambda self, stage, kind, chain, tail, states: max(
        0, int(count(self, stage, kind, chain, tail, states)) - int(np.count_nonzero(self._nodes.tokens[chain]) > 1)
    )


def _of_any_lease(of_session: Original) -> Original:
    del of_session
    return lambda self, _name, chain: chain[self._nodes.leased[chain] > 0]


def _dropped_if_refused(ask: Original) -> Original:
    def wrong(self: Leases, terms: LeaseTerms, *more: Any) -> LeaseAnswer:
        answer: LeaseAnswer = ask(self, terms, *more)
        if answer.refusal is not None and terms.name in self.held:
            self._let_go(self.held.pop(terms.name), None)
        return answer

    return wrong


def _without_sinks(most_tail_units: Original) -> Original:
    del most_tail_units

    def wrong(tailed: list[KindPlan], unit: int) -> int:
        runs = [ceil_div(kind.kind.fixed_units * kind.kind.tokens_per_unit, unit) for kind in tailed]
        return max(runs, default=0) + 1

    return wrong


def _taken_over_at_last(init: Original) -> Original:
    def wrong(self: Scheduler, *plan: Any, **options: Any) -> None:
        init(self, *plan, **options)
        adopt, copies = self.reuse._adopt, self.admission.copies

        def take_over(row: int, hit: Hit, ticket: Ticket) -> bool:
            with replaced(self.reuse.index.leases, "is_end", always(False)):
                return adopt(row, hit, ticket)

        def copies_of_tiers(ticket: Ticket) -> Pages | None:
            pages = copies(ticket)
            return pages if ticket.leased else None

        vars(self.reuse)["_adopt"], vars(self.admission)["copies"] = take_over, copies_of_tiers

    return wrong


def _all(stage: StagePlan) -> int:
    return stage.sheets


LEASES: dict[str, Mutation] = {
    "lease-evicted": Mutation("leased prefixes are evicted like others", Eviction, "_is_current", _as_others),
    "lease-cut-off": Mutation(
        "an eviction goes on past the end of a lease", PrefixIndex, "_bundle_begin", _past_leases
    ),
    "lease-taken-over": Mutation("a request takes over a leased prefix", Leases, "is_end", always(False)),
    "lease-overbooked": Mutation("any number of leases is granted", Leases, "_fits", always(True)),
    "lease-on-one-stage": Mutation("leases are counted on the first stage alone", Leases, "_fits", _first_stage),
    "lease-lost-by-compaction": Mutation(
        "after a compaction leased prefixes can be evicted", Room, "compact", _unmarked_by_moves
    ),
    "lease-outlives-its-time": Mutation("leases do not end at their time", Leases, "expire", nothing),
    "lease-ends-early": Mutation("leases end before their time", Leases, "expire", _too_early),
    "lease-breaks-reservation": Mutation(
        "requests that may stay count on the sheets of leases", StagePlan, "request_sheets", lambda _: property(_all)
    ),
    "lease-not-counted": Mutation("admission does not count what is leased", Leases, "sheets", always(0)),
    "lease-without-tails": Mutation("leases count no pages of tails", LeasePages, "count", _without_tails),
    "lease-page-short": Mutation("leases count one page too few of each kind", LeasePages, "count", _one_more_page),
    "lease-gives-back-shared": Mutation(
        "a lease that ends gives back pages that others share", Leases, "_let_go", _shared_too
    ),
    "lease-of-others-broken": Mutation(
        "dropping the cache of a scope breaks leases of others", Leases, "break_all", _everyone
    ),
    "lease-kept-when-dropped": Mutation(
        "dropping the cache leaves its leases in the books", Leasing, "break_all", nothing
    ),
    "lease-of-nothing": Mutation("a request's lease is not held when it ends", Leases, "settle", _of_nothing),
    "lease-forgotten": Mutation("a request's lease ends without a word", Leases, "settle", _forgotten),
    "lease-booked-by-half": Mutation(
        "room for a request's lease is counted for half of it", LeasePages, "up_to", _for_its_prompt
    ),
    "lease-of-another-session": Mutation(
        "a request moves the lease of any session to its end", Leasing, "_session", _first_of_session
    ),
    "lease-copied-without-room": Mutation(
        "a request starts earlier because there is no room to copy a leased state", Admission, "copies", always(None)
    ),
    "lease-elder-starts-early": Mutation(
        "no room is made for what the elder copies of a lease", Scheduler, "_copies_fit", always(True)
    ),
    "lease-shares-with-any": Mutation(
        "room for a request's lease is counted without what any other lease holds", Leases, "_of_session", _of_any_lease
    ),
    "lease-dropped-if-it-cannot-grow": Mutation(
        "a session's lease goes when the longer one is refused", Leases, "book", _dropped_if_refused
    ),
    "lease-without-sinks": Mutation(
        "room for a request's lease is counted without the units of sinks",
        lease_sizes,
        "_most_tail_units",
        _without_sinks,
    ),
    "lease-taken-over-at-last": Mutation(
        "a request takes over a leased prefix rather than wait for room to copy it",
        Scheduler,
        "__init__",
        _taken_over_at_last,
    ),
    "lease-dropped-if-it-cannot-move": Mutation(
        "a lease that is asked for again by its name goes if that is refused", Leases, "grant", _dropped_if_refused
    ),
}
