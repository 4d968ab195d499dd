"""Decides how many tokens each row computes in the next step.

    0. if all rows are taken, a tenant above its share gives one to a tenant below (`claims.py`)
    1. running rows, the elder first, then by priority and arrival, share the step's token budget
    2. if pages are short: evict cached prefixes, shrink the chunk, compact, preempt the youngest
    3. queued requests are admitted to the rest of the budget, if memory is likely to suffice (`admission.py`)

**Progress.** The elder (smallest arrival of all that are accepted and unfinished) has first claim to tokens, rows and
pages. It was accepted because it could run alone, one token at a time; all others can be preempted, and compaction
removes fragmentation. So whenever nothing is in flight, the next step computes at least one of its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quire.cache.memory import StageMemory
from quire.cache.tables import NO_NEED
from quire.core.drafting import Drafter
from quire.core.errors import NeverFits
from quire.core.events import (
    Listener,
    Publisher,
    RequestAccepted,
    RequestEnded,
    RequestPreempted,
    RequestRefused,
    StepLaunched,
)
from quire.core.reasons import Reason, Why
from quire.core.request import Ending, Request, Tokens
from quire.core.rules import Policy, Rules
from quire.core.step import Step, StepResult
from quire.core.tier import RecordStore, Tier
from quire.plan import bound
from quire.plan.plan import Plan
from quire.plan.tightest import never_fits, why_never
from quire.prefix.forecast import Forecast
from quire.prefix.leases import LeaseAnswer, LeaseEnding
from quire.prefix.leasing import Leasing
from quire.scheduler.admission import Admission
from quire.scheduler.claims import claims
from quire.scheduler.drafts import Drafts
from quire.scheduler.loading import Loading
from quire.scheduler.loads import Loads
from quire.scheduler.next_step import NextStep
from quire.scheduler.queue import FairQueue, Queue, Ticket, claim_of
from quire.scheduler.reuse import Reuse
from quire.scheduler.room import Grants, Room, needs_of_first, sum_pages
from quire.scheduler.rows import Ints, Rows
from quire.scheduler.running import Running
from quire.scheduler.shares import Shares
from quire.tiers.costs import StepMeter

LEAST_SHARE = 4
"""A chunk shrinks to 1 ÷ this of a step before prefixes are evicted that queued requests would reuse."""


@dataclass(frozen=True, slots=True, eq=False)
class Ended:
    """A request that has ended: its outputs, and why it ended."""

    request: Request
    outputs: Tokens
    ending: Ending


class Scheduler:
    """Decides every step: submit requests, ask `schedule` for the next step, and `apply` its result."""

    def __init__(
        self,
        plan: Plan,
        rules: Rules,
        tier: Tier | None = None,
        listeners: Sequence[Listener] = (),
        drafter: Drafter | None = None,
        *,
        keeper: RecordStore | None = None,
        forecast: Forecast | None = None,
        overlap: int = 1,
    ) -> None:
        """`forecast`: estimates what cached prefixes are worth; None: a new one that learns from this traffic.
        `overlap`: steps in flight at most; those of a pipeline share no row that generates, so that all stages work."""
        self.plan, self.policy = plan.require_fit(), rules.policy
        self.memories = [StageMemory(stage, plan, plan.max_requests) for stage in plan.stages if stage.kinds]
        microbatches = overlap if plan.pipeline_parallel > 1 else 1
        self.rows = rows = Rows(plan.max_requests, plan.batch_tokens, microbatches)
        self.events = events = Publisher(listeners)
        self.shares = Shares()
        is_fair = rules.policy is Policy.FAIR
        self.queue = FairQueue(rules.queue_bound, self.shares) if is_fair else Queue(rules.queue_bound)
        self.next_step = next_step = NextStep(self.memories)
        self.reuse = reuse = Reuse(plan, self.memories, rows, next_step, events, keeper=keeper, forecast=forecast)
        self.room = room = Room(plan, rows, reuse, next_step, events)
        self.drafts = Drafts(plan, self.memories, rows, drafter, events)
        index, size_of = reuse.index, reuse.stores.size_of
        self.loads = Loads(tier, rules.seconds_to_load, size_of, index.unit, index.coverage.has_boundaries)
        self.running = running = Running(rows, reuse, room, self.loads, next_step)
        self.loading = loading = Loading(self.loads, running, rows, reuse, room, next_step=next_step, publisher=events)
        self.leasing = leasing = Leasing(index, events, reuse.stores)
        self.admission = Admission(
            plan, self.queue, running, rows, reuse, room=room, loading=loading, leasing=leasing, publisher=events
        )
        self._arrivals = 0
        self._least_chunk = max(1, plan.batch_tokens // LEAST_SHARE)
        self.flying: list[Step] = []
        """Steps in flight, the oldest first."""
        self.meter = StepMeter()
        """How long steps take, if the engine measures it."""

    # ── requests come and go ──────────────────────────────────────────────

    def submit(self, request: Request) -> LeaseAnswer | None:
        """Accepts a request, or raises at once: NeverFits if it could never run, QueueFull if too many wait. Returns
        whether the lease that it asks for is granted."""
        if not bound.admits(self.plan, request.limit):
            reason = why_never(self.plan, request)
            self.events.publish(RequestRefused(self.steps, request.name, reason, request.limit))
            raise NeverFits(never_fits(reason))
        ticket = Ticket(request, self._arrivals, claim_of(request, self._arrivals, self.policy))
        self.queue.add(ticket)
        self.shares.enter(request.tenant, request.weight)
        self._arrivals += 1
        self.reuse.name(ticket)
        if len(self.queue) > 1 or len(self.running):
            self.admission.expect(ticket)
        self.events.publish(RequestAccepted(self.steps, request.name, len(request.prompt), request.max_tokens))
        if request.retain is None:
            return None
        answer = self.leasing.book(request, ticket.keys, ticket.root)
        ticket.lease = None if answer.refusal else answer.name
        return answer

    @property
    def steps(self) -> int:
        """Steps launched so far."""
        return self.events.step

    def cancel(self, name: str, ending: Ending = Ending.CANCELLED) -> Ended | None:
        """Ends a request, queued or running; None if it is not here."""
        ticket = self.queue.find(name)
        if ticket is not None:
            self.queue.remove(ticket)
            return self._over(ticket, ticket.outputs, ending)
        row = self.rows.row_of.get(name)
        return None if row is None else self._end(row, ending)

    def _end(self, row: int, ending: Ending, keep: bool = True) -> Ended:
        ticket = self.running.tickets[row]
        return self._over(ticket, self.running.leave(row, keep), ending, keep)

    def _over(self, ticket: Ticket, outputs: Tokens, ending: Ending, keep: bool = True) -> Ended:
        if ticket.lease is not None:
            tokens = np.concatenate([ticket.request.prompt, outputs])
            self.leasing.settle(ticket.lease, ticket.request.name, ticket.keys, ticket.root, tokens, keep=keep)
        self.reuse.forget(ticket)
        self.shares.leave(ticket.request.tenant)
        self.events.publish(RequestEnded(self.steps, ticket.request.name, ending, len(outputs)))
        return Ended(ticket.request, outputs, ending)

    def is_idle(self) -> bool:
        return not (len(self.running) or len(self.queue) or self.flying or self.next_step.has_stores)

    # ── a step ────────────────────────────────────────────────────────────

    def schedule(self, now: float = 0.0) -> Step | None:
        """The next step, or None if nothing can be computed before a step in flight or a load is done."""
        self.leasing.go_on(now)
        self.reuse.pass_points()  # before loads land, whose bytes are not in their pages yet
        if self.loads.has_tier:
            for row, reason in self.loading.end(now):
                self.admission.put_back(row, reason)
        if len(self.queue):
            self.reuse.catch_up()
            if (elder := self.admission.queued_elder()) is not None and self._copies_fit(elder):
                self.admission.admit_elder(elder)
            self._return_row()
        rows = self.running.order()
        if not len(rows) and not len(self.queue):
            return self._transfer_only()
        grants = self._fit(rows, self._share(self._wanted(rows)))
        if len(self.queue):
            grants = self.admission.admit(grants)
        if np.count_nonzero(grants.tokens) == len(grants.rows):
            return self._launch(grants) if len(grants.rows) else None
        computes = grants.tokens > 0
        is_moving = self.flying or computes[0] or self.rows.is_loading[grants.rows[0]]
        assert is_moving, "the elder makes progress whenever nothing is in flight"
        if computes.any():
            return self._launch(Grants(grants.rows[computes], grants.tokens[computes], grants.needs))
        return self._transfer_only() if self.next_step.has_loads else None

    def _return_row(self) -> None:
        """If all rows are taken: lets a request in whose tenant is below its share, for one of a tenant above."""
        if not isinstance(self.queue, FairQueue) or self.rows.has_room():
            return
        for ticket, row in claims(self.queue, self.shares, self.running, self.rows):
            if not (self.admission.why_not_yet(ticket) or self.admission.why_no_copy(ticket, self.room.no_pages)):
                self._preempt(row, Reason(Why.NEEDS_ROW, (ticket.request.name,)))
                self.admission.start(ticket)
                break

    def _transfer_only(self) -> Step | None:
        """A step without rows: stores to a tier and loads from one do not wait for a row that computes."""
        if not (self.next_step.has_stores or self.next_step.has_loads):
            return None
        none = np.empty(0, dtype=np.int64)
        return self._launch(Grants(none, none, [[NO_NEED for _ in memory.tables] for memory in self.memories]))

    def _wanted(self, rows: Ints) -> Ints:
        """Tokens that each row could compute now."""
        wanted = self.rows.remaining(rows)
        if self.flying and self.reuse.junctions.ahead and self.rows.microbatches == 1:
            wanted = self._without_small_chunks(rows, wanted)
        if len(self.loads):
            wanted = wanted * ~self.rows.is_loading[rows]
        waiting = self.drafts.waiting(rows)
        return wanted if waiting is None else wanted * ~waiting

    def _without_small_chunks(self, rows: Ints, wanted: Ints) -> Ints:
        """Drops small chunks of rows that have a chunk in flight: the rest of a step's budget is not worth another."""
        state, computed = self.rows, self.rows.computed[rows]
        ends = np.minimum(state.expected[rows], state.most[rows])
        is_little = (wanted < self.plan.batch_tokens // 2) & (wanted < ends - computed)
        return wanted * ~(is_little & (computed > state.settled[rows]))

    def _share(self, wanted: Ints) -> Ints:
        """Divides the step's token budget, in the order of rows: a chunk shrinks before the rows after it get none."""
        together, budget = wanted.cumsum(), self.plan.batch_tokens
        if not len(wanted) or together[-1] <= budget:
            return wanted
        return np.clip(budget - together + wanted, 0, wanted)

    def _fit(self, rows: Ints, granted: Ints) -> Grants:
        """Makes room if pages are short, for the first rows in order and at the expense of the last."""
        needs, names = self.room.needs(rows, granted), self.rows.requests
        while self.room.is_short(sum_pages(needs)):
            fitting = self.room.fitting(rows, needs)
            wanted = sum_pages(needs_of_first(fitting + 1, rows, needs))
            if self.room.evict(wanted, must=True):
                continue
            before, row = sum_pages(needs_of_first(fitting, rows, needs)), rows.item(fitting)
            most = granted.item(fitting) - 1
            tokens = self.room.shrunk(before, row, most)
            # a smaller chunk costs less than evicting what queued requests will reuse; one in flight frees pages later
            gives_back = self.rows.computed[row] > self.rows.settled[row] + 1
            if tokens < self._least_chunk and not gives_back:
                if self.room.evict(wanted, must=True, even_awaited=True):
                    continue
                tokens = self.room.shrunk(before, row, most)
            granted = granted.copy()
            granted[fitting] = tokens
            # if it gets nothing and no row makes room, it waits for a page; rows after it may still need none
            if not tokens and not gives_back and self._make_room(rows[fitting + 1 :], names[row].name, not fitting):
                rows = self.running.order()
                granted = self._share(self._wanted(rows))
            needs = self.room.needs(rows, granted)
        return Grants(rows, granted, needs)

    def _make_room(self, after: Ints, name: str, is_elder: bool) -> bool:
        """Takes pages back from captures, compacts, or preempts the last of the rows after request `name` in order.
        True: try again.

        A reserved row is preempted only for the elder, after all others, and not while the elder has tokens in flight
        or others have chunks in flight: pages are freed when those settle.
        """
        if self.reuse.captures.give_up() or self.room.compact():
            return True
        free = after[~self.rows.is_reserved[after]]
        victims = after if is_elder and not len(free) and self._is_settled(name) else free
        if not len(victims):
            return False
        self._preempt(int(victims[-1]), Reason(Why.NEEDS_PAGES, (name,)))
        return True

    def _is_settled(self, elder: str) -> bool:
        """Whether the elder has no token in flight, and others have no chunk."""
        order, row = self.running.order(), self.rows.row_of.get(elder)
        in_flight = self.rows.computed[order] - self.rows.settled[order]
        return bool(in_flight.max(initial=0) <= 1) and (row is None or not in_flight[0])

    def _copies_fit(self, elder: Ticket) -> bool:
        """Makes room for what the queued elder copies of a leased prefix. False: steps in flight must settle first."""
        while (copies := self.admission.copies(elder)) is not None and self.room.is_short(copies):
            if self.room.evict(copies, must=True, even_awaited=True):
                continue
            if not self._make_room(self.running.order(), elder.request.name, is_elder=True):
                return not self.flying
        return True

    def _preempt(self, row: int, reason: Reason) -> None:
        """Takes the row from its request: its pages are freed, its outputs stay. Its tokens are loaded from a tier or
        computed again, whichever is cheaper. Results in flight for it are stale."""
        ticket, computed = self.running.tickets[row], int(self.rows.computed[row])
        way = self.reuse.stores.way_back(computed, self.meter.seconds_for(computed, self.plan.batch_tokens))
        outputs = self.running.leave(row, to_tier=way is None or way.is_load)
        again = ticket.after_preemption(outputs, Reason(Why.PREEMPTED, because=reason), way)
        self.queue.add(again, returning=True)
        self.events.publish(RequestPreempted(self.steps, again.request.name, reason, again.preemptions, way))

    # ── launching steps, applying results ─────────────────────────────────

    def _launch(self, grants: Grants) -> Step:
        state, rows, counts = self.rows, grants.rows, grants.tokens
        clears = [
            (stage, kind, pages)
            for stage, (memory, needs) in enumerate(zip(self.memories, grants.needs, strict=True))
            for kind, pages in memory.grow(needs)
        ]
        starts, expected = state.computed[rows], state.expected[rows]
        ends = starts + counts
        samples = ends == expected
        drafts, tokens = self.drafts.add(rows, counts, samples, state.batch(rows, starts, counts))
        state.computed[rows] = ends
        state.expected[rows] = expected + samples
        step = self.next_step.launch(
            self.steps,
            rows=rows,
            starts=starts,
            counts=counts if drafts is None else counts + drafts,
            samples=samples,
            epochs=state.epoch[rows],
            token_ids=tokens,
            clears=tuple(clears),
            drafts=drafts,
            captures=self.reuse.capture(rows, starts, ends),
        )
        self.events.step += 1
        if self.policy is Policy.FAIR:
            for row, count in zip(rows.tolist(), step.counts.tolist(), strict=True):
                self.shares.charge(state.requests[row].tenant, count)
        self.flying.append(step)
        self.events.publish(StepLaunched(self.steps, len(rows), len(tokens)))
        return step

    def apply(self, result: StepResult) -> list[Ended]:
        """Settles the oldest step in flight, appends its tokens, and ends requests that are complete."""
        step = self.flying.pop(0)
        assert step.number == result.number, "results come back in the order of launch"
        state, rows, samples = self.rows, step.rows, step.samples
        current = state.epoch[rows] == step.epochs
        computed, tokens = self.drafts.accept(step, result, current)
        if np.count_nonzero(current) < len(rows):
            rows, computed, tokens = rows[current], computed[current], tokens[current[samples]]
            samples = samples[current]
        sampled = rows[samples]
        settled = state.settled[rows] + computed
        state.settled[rows] = settled
        state.append(sampled, tokens)
        self.reuse.remember(rows, settled)
        for memory in self.memories:
            memory.settle(rows, settled)
        return self._ended(sampled, tokens)

    def _ended(self, rows: Ints, tokens: Ints) -> list[Ended]:
        state = self.rows
        stopped = (state.stops.take(rows, axis=0) == tokens[:, None]).nonzero()[0].tolist()
        full = (state.known[rows] >= state.limit[rows]).nonzero()[0].tolist()
        ended = []
        for place in sorted({*stopped, *full}):
            row = rows.item(place)
            self.admission.learn(state.output_counts.item(row))
            ended.append(self._end(row, Ending.STOP if place in stopped else Ending.LENGTH))
        return ended

    def abandon(self) -> list[Ended]:
        """Gives up the steps in flight: requests that have a row end, and the pool's cache goes: it may lack copies."""
        ended = [self._end(row, Ending.CANCELLED, keep=False) for row in list(self.running.tickets)]
        self.loads.drop(number for step in self.flying for number, _ in step.loads)
        self.reuse.catch_up()
        self.leasing.break_all(b"", LeaseEnding.FAILED)
        self.reuse.index.drop()
        self.reuse.stores.give_up(self.flying)
        self.flying.clear()
        return ended
