"""Which requests are admitted: the elder always, others while the memory is likely to suffice for all.

Capacity says what fits together; admission decides which requests start, given the lengths that they are likely to
reach. Smaller requests may pass one that does not fit yet, but not for ever: in the end it is the elder.
"""

from __future__ import annotations

import numpy as np

from quire.core.events import LoadStarted, Publisher, RequestAdmitted, RequestWaits
from quire.core.reasons import Reason, Why
from quire.core.tier import Load
from quire.plan.plan import Plan
from quire.prefix.leasing import Leasing
from quire.scheduler.loading import Loading
from quire.scheduler.queue import FairQueue, Queue, Ticket
from quire.scheduler.reuse import Reuse
from quire.scheduler.room import Grants, Pages, Room, add_pages, join_needs, sum_pages
from quire.scheduler.rows import ONE, Ints, Rows
from quire.scheduler.running import Running

MOST_PREEMPTIONS = 2
"""After this many preemptions a request is resumed only when all running requests can stay to their ends, and then only
the elder can preempt it. So the limit is this number, plus one for each older request that was not running then."""
QUEUE_SIGHT = 8
"""How many requests a step passes over, or starts to load from a tier, in search of one that computes now."""
STATES_SHARE = 0.5
"""The part of the pool that stays free for cached states, if requests fit only because they share pages."""
MOST_NEWCOMERS = 32
"""Most requests admitted in one step: each admission takes time, in which the running requests wait."""
FIRST_TYPICAL_OUTPUT = 128.0
TYPICAL_OVER = 32
"""Endings over which the typical number of outputs is averaged."""


class Admission:
    """Moves requests from the queue to rows, and says why the others wait."""

    def __init__(
        self,
        plan: Plan,
        queue: Queue,
        running: Running,
        rows: Rows,
        reuse: Reuse,
        *,
        room: Room,
        loading: Loading,
        leasing: Leasing,
        publisher: Publisher,
    ) -> None:
        self._plan, self._queue, self._rows, self._running = plan, queue, rows, running
        self._reuse, self._room, self._loading, self._publisher = reuse, room, loading, publisher
        self._leasing = leasing
        self.typical_output = FIRST_TYPICAL_OUTPUT
        """Tokens that a request generates: a moving average over those that ended."""

    # ── admitting ─────────────────────────────────────────────────────────

    def queued_elder(self) -> Ticket | None:
        """The elder, if it is queued."""
        elder, order = self._queue.elder(), self._running.order()
        if elder is None or (len(order) and self._running.tickets[int(order[0])].arrival < elder.arrival):
            return None
        return elder

    def admit_elder(self, elder: Ticket) -> None:
        """Admits the elder: it never waits for a row, whatever its priority."""
        assert self._rows.has_room(), "the elder before it has left its row"
        self.start(elder)

    def start(self, ticket: Ticket) -> None:
        """Gives a request a free row before the step's tokens are shared out."""
        row = self._enter(ticket)
        self._report_admitted(row, self._loading.begin(row, ticket, self._room.no_pages))

    def admit(self, grants: Grants) -> Grants:
        """Adds queued requests, in the queue's order, to the rows that were granted tokens of the next step."""
        found = [grants]
        promised, budget = sum_pages(grants.needs), self._plan.batch_tokens - int(grants.tokens.sum())
        passed = refused_cached = 0
        self._look_again()
        for ticket in self._queue.in_turn():
            if budget <= 0 or not self._rows.has_room():
                self._let_wait(ticket, self.why_full(ticket.reason))
                break
            if passed == QUEUE_SIGHT or len(found) > MOST_NEWCOMERS:
                break
            if ticket.cached < refused_cached and not self._queue.is_overdue(ticket):
                self._let_wait(ticket, Reason(Why.CACHED_FIRST))
                break
            entered = self._let_in(ticket, budget, promised)
            if entered is None:
                passed += 1
                if ticket.request.name not in self._rows.row_of and self._reuse.is_coming(ticket) is None:
                    refused_cached = max(refused_cached, ticket.cached)
                continue
            found.append(entered)
            promised = add_pages(promised, sum_pages(entered.needs))
            budget -= entered.tokens.item()
        if len(found) == 1:
            return grants
        rows, tokens, needs = zip(*found, strict=True)
        return Grants(np.concatenate(rows), np.concatenate(tokens), join_needs(needs))

    def _let_in(self, ticket: Ticket, budget: int, promised: Pages) -> Grants | None:
        """What it computes in the next step. None: it waits further, or a tier loads its first tokens."""
        self.expect(ticket)  # who was let in before it may have taken over what it would reuse
        if reason := self.why_not_yet(ticket) or self.why_no_copy(ticket, promised):
            self._let_wait(ticket, reason)
            return None
        row = self._enter(ticket)
        if load := self._loading.begin(row, ticket, promised):
            self._report_admitted(row, load)
            return None
        is_leased = self._rows.settled[row] < ticket.leased
        if is_leased or (grants := self._first_chunk(row, budget, promised)) is None:
            self.put_back(row, Reason(Why.LEASED if is_leased else Why.FIRST_PAGE))
            return None
        self._report_admitted(row)
        return grants

    def copies(self, ticket: Ticket) -> Pages | None:
        """Pages that a request copies or loads because it continues from a leased prefix; None: it does not."""
        return self._leasing.copies(ticket)

    def why_no_copy(self, ticket: Ticket, promised: Pages) -> Reason | None:
        """Why it waits although it could start without the leased prefix that it continues: there is no room for the
        pages that it must copy or load, and nothing to evict for them."""
        copies = self.copies(ticket)
        if 0 < ticket.leased == ticket.offer and not self._can_all_stay(ticket):
            return Reason(Why.LEASED)
        if copies is None or not self._room.is_short(wanted := add_pages(promised, copies)):
            return None
        is_made = not self._room.cache_is_in_use and self._room.evict(wanted, must=False)
        return None if is_made else Reason(Why.LEASED)

    def _enter(self, ticket: Ticket) -> int:
        self._queue.remove(ticket)
        self._queue.admissions += 1
        row = self._running.enter(ticket)
        self._rows.is_reserved[row] = ticket.preemptions >= MOST_PREEMPTIONS
        return row

    def _first_chunk(self, row: int, budget: int, promised: Pages) -> Grants | None:
        """What a newly admitted row can compute in addition to the rows before it; cached prefixes are evicted for it.
        None: there is no page for its first token."""
        tokens = np.minimum(self._rows.remaining(rows := np.array([row])), budget)
        needs = self._room.needs(rows, tokens)
        wanted = add_pages(promised, sum_pages(needs))
        if not self._room.is_short(wanted) or (not self._room.cache_is_in_use and self._room.evict(wanted, must=False)):
            return Grants(rows, tokens, needs)
        fewer = self._room.shrunk(promised, row, tokens.item(0) - 1)
        return Grants(rows, np.array([fewer]), self._room.needs(rows, np.array([fewer]))) if fewer else None

    def _report_admitted(self, row: int, load: Load | None = None) -> None:
        """Publishes `admitted`, then `loading` if a tier loads tokens: always in this order."""
        ticket, step = self._running.tickets[row], self._publisher.step
        name, missed = ticket.request.name, {}
        if not ticket.preemptions and not ticket.is_reported:
            missed, ticket.is_reported = ticket.gap.numbers(), True
        numbers = ticket.hit_tokens, self._rows.known.item(row), ticket.preemptions
        self._publisher.publish(RequestAdmitted(step, name, *numbers, ticket.miss, **missed))
        if load is not None:
            self._publisher.publish(LoadStarted(step, name, load.tokens, load.number))

    def put_back(self, row: int, reason: Reason) -> None:
        """Returns the request of a row that could not start to the queue, unchanged."""
        ticket = self._running.tickets[row]
        self._running.leave(row, keep=False)
        self._queue.add(ticket, returning=True)
        self._let_wait(ticket, reason)

    # ── waiting ───────────────────────────────────────────────────────────

    def _let_wait(self, ticket: Ticket, reason: Reason) -> None:
        self.expect(ticket)
        if ticket.reason != reason:
            ticket.reason = reason
            self._publisher.publish(RequestWaits(self._publisher.step, ticket.request.name, reason))

    def expect(self, ticket: Ticket) -> None:
        """The cached prefix that it would reuse is evicted last; the longer that is, the sooner it is admitted."""
        tokens = self._reuse.expectations.expect(ticket)
        if tokens != ticket.cached:
            self._queue.prefer(ticket, tokens)

    def _look_again(self) -> None:
        """Looks up queued requests again of whose prompts more may be cached by now."""
        for ticket in list(self._reuse.expectations.changed.values()):
            self.expect(ticket)

    def why_full(self, last: Reason) -> Reason:
        """Why no request can be admitted. One that lacks memory as well goes on waiting for that (`last`)."""
        if not self._rows.has_room():
            return Reason(Why.ROWS, numbers={"rows": self._rows.count})
        return last if last.code is Why.MEMORY else Reason(Why.STEP_TOKENS, numbers={"tokens": self._plan.batch_tokens})

    def why_not_yet(self, ticket: Ticket) -> Reason | None:
        """Why policy, not capacity, does not admit a request yet; None: it is admitted."""
        if (computing := self._reuse.is_coming(ticket)) is not None:
            return Reason(Why.PREFIX, (self._rows.requests[computing].name,))
        if ticket.preemptions >= MOST_PREEMPTIONS and not self._can_all_stay(ticket):
            return Reason(Why.MUST_STAY, numbers={"times": ticket.preemptions})
        if not self._is_likely_to_last(ticket):
            return Reason(Why.MEMORY)
        return None

    def _can_all_stay(self, newcomer: Ticket) -> bool:
        """Whether all requests fit at their greatest lengths, and under fair shares a row stays free: else the next
        tenant that comes would take its row."""
        has_row = not isinstance(self._queue, FairQueue) or self._rows.has_room(2)
        return has_row and self._room.can_stay([*self._running.limits(), newcomer.request.limit])

    def _is_likely_to_last(self, ticket: Ticket) -> bool:
        """Whether all fit at the lengths they are likely to reach, in addition to prefixes that other queued requests
        are about to use. Pages that several requests hold count once; with recurrent states, which are not shared, only
        as long as part of the pool stays free of requests. If prefixes are reused, a chunk of the new request counts
        too: otherwise the chunk would be cut, or evict some of them."""
        rows, reuse, room = self._running.order(), self._reuse, self._room
        lengths = np.concatenate((self.likely_lengths(rows), (self.likely_length(ticket),)))
        limits = np.concatenate((self._rows.limit[rows], (ticket.request.limit,))) if self._plan.lookahead else lengths
        share, shared = reuse.index.awaited.share(ticket.awaits), reuse.expectations.shared_pages(ticket)
        is_shared, new = any(map(any, shared)), np.ones_like(lengths)
        if share or is_shared or ticket.cached:
            new[-1] = max(1, min(self._plan.batch_tokens, ticket.known - ticket.cached))
        if not reuse.index.coverage.has_states:
            return room.can_hold(lengths, limits, new, shared, share)
        if room.can_hold(lengths, limits, new, kept_share=share):
            return True
        return is_shared and room.can_hold(lengths, limits, new, shared, max(share, STATES_SHARE))

    # ── what requests are likely to become ────────────────────────────────

    def learn(self, outputs: int) -> None:
        """A request ended after this many outputs."""
        self.typical_output += (outputs - self.typical_output) / TYPICAL_OVER

    def likely_lengths(self, rows: Ints) -> Ints:
        """Lengths that running rows are likely to reach; their limits if they are reserved."""
        state, reserved = self._rows, self._rows.is_reserved[rows]
        likely: Ints = np.maximum(state.known[rows] + ONE, state.prompt[rows] + int(self.typical_output))
        if np.count_nonzero(reserved):
            likely = np.where(reserved, state.limit[rows], likely)
        return np.asarray(np.minimum(likely, state.limit[rows]), dtype=np.int64)

    def likely_length(self, ticket: Ticket) -> int:
        """The length that a queued request is likely to reach."""
        likely = max(ticket.known + 1, len(ticket.request.prompt) + int(self.typical_output))
        return min(likely, ticket.request.limit)
