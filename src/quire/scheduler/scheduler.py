"""Who computes how many tokens in the next step.

    1. running rows, the elder first, then by priority and arrival, share the step's token budget
    2. if pages are short: forget cached prefixes, shrink the chunk, compact, preempt the youngest
    3. what is left of the budget lets waiting requests in, if their memory is likely to last

**Progress.** The elder (smallest arrival of all that are accepted and unfinished) has first claim to tokens, rows and
pages. It was accepted because it could run alone, one token at a time; everyone else can be preempted, and compaction
removes what fragmentation holds. So whenever nothing is in flight, the next step computes at least one of its tokens.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from quire.cache.memory import StageMemory
from quire.cache.reuse_times import Forecast
from quire.cache.tables import NO_NEED
from quire.core.drafting import Drafter
from quire.core.errors import NeverFits
from quire.core.events import (
    Listener,
    LoadFailed,
    LoadFinished,
    LoadStarted,
    Publisher,
    RequestAccepted,
    RequestAdmitted,
    RequestEnded,
    RequestPreempted,
    RequestRefused,
    RequestWaits,
    StepLaunched,
)
from quire.core.reasons import Reason, Why
from quire.core.request import Ending, Request
from quire.core.rules import Policy, Rules
from quire.core.sentences import sentence
from quire.core.step import Step, StepResult
from quire.core.tier import Keeper, Load, Tier
from quire.kinds import counts
from quire.plan import bound
from quire.plan.plan import Plan
from quire.plan.tightest import tightest
from quire.scheduler.drafts import Drafts
from quire.scheduler.endings import Ended
from quire.scheduler.loads import Loads
from quire.scheduler.reuse import Copy, Reuse
from quire.scheduler.room import Needs, Pages, Room, add_pages, join_needs, needs_of_first, sum_pages
from quire.scheduler.rows import ONE, Ints, Rows
from quire.scheduler.shares import Shares
from quire.scheduler.waiting import Claim, FairQueue, Queue, Waiting, claim_of
from quire.tiers.costs import StepMeter

MOST_PREEMPTIONS = 2
"""Sent away so often, a request comes back only when everyone can stay, and then gives way to elders alone: nobody is
preempted more often than this, and once more for each older request that was not running then."""
QUEUE_SIGHT = 8
"""How many a step passes over, or leaves to a tier, while it looks for someone who computes now."""
STATES_SHARE = 0.5
"""Of the pool, what stays free for cached states of requests that fit only because they share pages."""
LEAST_SHARE = 4
"""A chunk shrinks to this part of a step before prefixes are evicted that queued requests would go on from."""
MOST_NEWCOMERS = 32
"""In one step: each takes time, and those that run wait meanwhile."""


class Scheduler:
    def __init__(
        self,
        plan: Plan,
        rules: Rules,
        tier: Tier | None = None,
        listeners: Sequence[Listener] = (),
        drafter: Drafter | None = None,
        keeper: Keeper | None = None,
        forecast: Forecast | None = None,
    ) -> None:
        """`forecast`: what keeping prefixes is worth; none: what is learned of this traffic."""
        self.plan = plan.require_fit()
        self.memories = [StageMemory(stage, plan, plan.max_requests) for stage in plan.stages if stage.kinds]
        self.events = Publisher(listeners)
        self._batch_tokens = counts(plan.batch_tokens)
        self._least_chunk = max(1, plan.batch_tokens // LEAST_SHARE)
        self.rows = Rows(plan.max_requests)
        self._copies: list[Copy] = []
        self.reuse = Reuse(plan, self.memories, self.rows, self._copies, self.events, keeper, forecast)
        self.room = Room(plan, self.rows, self.reuse, self._copies, self.events)
        self.drafts = Drafts(plan, self.memories, self.rows, drafter, self.events)
        index, size_of = self.reuse.index, self.reuse.stores.size_of
        self.loads = Loads(tier, rules.seconds_to_load, size_of, index.unit, index.coverage.has_boundaries)
        self._entered: dict[int, Waiting] = {}
        """Rows that have new tenants since the last step."""
        self._views = tuple(tuple(table.view for table in memory.tables) for memory in self.memories)
        self._landed: list[tuple[int, int]] = []
        """(load, row): staged, to be copied into the row's pages by the next step."""
        self.shares = Shares(rules.weights)
        is_fair = rules.policy is Policy.FAIR
        self.queue = FairQueue(rules.queue_bound, self.shares) if is_fair else Queue(rules.queue_bound)
        self.policy = rules.policy
        self.tickets: dict[int, Waiting] = {}
        """How each running row came in: its arrival and its preemptions."""
        self._line: list[tuple[Claim, int]] = []
        """Running rows in the order of their claims."""
        self._order = np.empty(0, dtype=np.int64)
        self._order_is_stale = False
        self._arrivals = 0
        self._now = 0.0
        self.flying: list[Step] = []
        self.meter = StepMeter()
        """How long steps take, as far as whoever runs them tells."""
        self.typical_output = 128.0
        """Learnt from what ended: how many tokens a request yields."""

    # ── requests come and go ──────────────────────────────────────────────

    def submit(self, request: Request) -> None:
        """Accepts a request, or says at once that it could never run (or that too many wait)."""
        if not bound.admits(self.plan, request.limit):
            reason = self._never(request)
            self.events.publish(RequestRefused(self.steps, request.name, reason, request.limit))
            raise NeverFits(sentence(reason))
        waiting = Waiting(request, self._arrivals, claim_of(request, self._arrivals, self.policy))
        self.queue.add(waiting)
        self.shares.enter(request.tenant)
        self._arrivals += 1
        self.reuse.name(waiting)
        if len(self.queue) > 1 or self.tickets:
            self._expect(waiting)
        accepted = RequestAccepted(self.steps, request.name, len(request.prompt), request.max_tokens)
        self.events.publish(accepted)

    def _never(self, request: Request) -> Reason:
        numbers = {"prompt": len(request.prompt), "max_tokens": request.max_tokens, "max_length": self.plan.max_length}
        return Reason(Why.NEVER_FITS, (request.name,), numbers | tightest(self.plan, request.limit).numbers)

    @property
    def steps(self) -> int:
        """Launched so far."""
        return self.events.step

    def cancel(self, name: str, ending: Ending = Ending.CANCELLED) -> Ended | None:
        """Ends a request wherever it is; None if it is not here."""
        waiting = self.queue.find(name)
        if waiting is not None:
            self.queue.remove(waiting)
            return self._over(waiting, waiting.outputs, ending)
        row = self.rows.row_of.get(name)
        return None if row is None else self._end(row, ending)

    def _end(self, row: int, ending: Ending) -> Ended:
        ticket = self.tickets[row]
        return self._over(ticket, self._vacate(row), ending)

    def _over(self, ticket: Waiting, outputs: npt.NDArray[np.int32], ending: Ending) -> Ended:
        self.reuse.forget(ticket)
        self.shares.leave(ticket.request.tenant)
        self.events.publish(RequestEnded(self.steps, ticket.request.name, ending, len(outputs)))
        return Ended(ticket.request, outputs, ending)

    def _vacate(self, row: int, hand_over: bool = True, to_tier: bool = True) -> npt.NDArray[np.int32]:
        staged = [number for number, landed in self._landed if landed == row]
        self.reuse.leave(row, self.tickets[row], hand_over and not staged, to_tier)
        self.loads.cancel(row)
        for number in staged:
            self.loads.drop(number)
            self._landed.remove((number, row))
        for memory in self.memories:
            memory.release(row)
        del self._line[bisect.bisect_left(self._line, (self.tickets.pop(row).claim, row))]
        self._order_is_stale = True
        self.room.cache_is_in_use = False
        self.reuse.index.eviction.was_given_back = True
        return self.rows.leave(row)

    def is_idle(self) -> bool:
        return not self.tickets and not len(self.queue) and not self.flying and not self.reuse.stores.due

    # ── a step ────────────────────────────────────────────────────────────

    def schedule(self, now: float = 0.0) -> Step | None:
        """The next step, or None if nothing can be computed until one in flight, or a load, comes back."""
        self._now = now
        if self.loads.has_tier:
            self._end_loads()
        if len(self.queue):
            self.reuse.catch_up()
            self._admit_elder()
        rows = self.order()
        if not len(rows) and not len(self.queue):
            return self._errand()
        granted = self._share(self._wanted(rows), self.plan.batch_tokens)
        rows, granted, needs = self._fit(rows, granted)
        if len(self.queue):
            rows, granted, needs = self._admit(rows, granted, needs)
        if np.count_nonzero(granted) == len(rows):
            return self._launch(rows, granted, needs) if len(rows) else None
        chosen = granted > 0
        is_moving = self.flying or chosen[0] or self.rows.is_loading[rows[0]]
        assert is_moving, "the elder makes progress whenever nothing is in flight"
        if chosen.any():
            return self._launch(rows[chosen], granted[chosen], needs)
        return self._errand() if self._landed else None

    def _errand(self) -> Step | None:
        """Nobody computes: what goes out to a tier, or comes from there, need not wait for someone who does."""
        if not (self.reuse.stores.due or self._landed):
            return None
        nobody = np.empty(0, dtype=np.int64)
        return self._launch(nobody, nobody, [[NO_NEED for _ in memory.tables] for memory in self.memories])

    def order(self) -> Ints:
        """Running rows: the elder first, then by claim."""
        if self._order_is_stale:
            rows = [row for _, row in self._line]
            if rows and self._line[0][0][0] != self._line[-1][0][0]:  # by priority first, and not all have the same
                elder = min(rows, key=lambda row: self.tickets[row].arrival)
                rows.remove(elder)
                rows.insert(0, elder)
            self._order = np.array(rows, dtype=np.int64)
            self._order_is_stale = False
        return self._order

    def _wanted(self, rows: Ints) -> Ints:
        """Tokens each row could compute now; no row has more than one step's budget in flight."""
        state = self.rows
        ends = np.minimum(state.expected[rows], state.most[rows])
        wanted: Ints = np.minimum(ends, state.settled[rows] + self._batch_tokens) - state.computed[rows]
        if self.flying and self.reuse.junctions.ahead:
            # what is left of a step's budget beside a chunk in flight is not worth a chunk of its own
            computed = state.computed[rows]
            is_little = (wanted < self.plan.batch_tokens // 2) & (wanted < ends - computed)
            if np.count_nonzero(is_little):
                wanted = wanted * ~(is_little & (computed > state.settled[rows]))
        if len(self.loads):
            wanted = wanted * ~state.is_loading[rows]
        waiting = self.drafts.waiting(rows)
        return wanted if waiting is None else wanted * ~waiting

    @staticmethod
    def _share(wanted: Ints, budget: int) -> Ints:
        """First come, first served from the step's one budget: chunks shrink before anyone waits."""
        together = wanted.cumsum()
        if not len(wanted) or together[-1] <= budget:
            return wanted
        last = int(together.searchsorted(budget))
        granted = wanted.copy()
        granted[last] -= together[last] - budget
        granted[last + 1 :] = 0
        return granted

    def _fit(self, rows: Ints, granted: Ints) -> tuple[Ints, Ints, Needs]:
        """Makes room where pages are short, for the first in line and at the expense of the last."""
        needs = self.room.needs(rows, granted)
        while self.room.is_short(sum_pages(needs)):
            fitting = self.room.fitting(rows, needs)
            wanted = sum_pages(needs_of_first(fitting + 1, rows, needs))
            if self.room.evict(wanted, must=True):
                continue
            before, row, most = (
                sum_pages(needs_of_first(fitting, rows, needs)),
                rows.item(fitting),
                granted.item(fitting) - 1,
            )
            tokens = self.room.shrunk(before, row, most)
            # a smaller chunk costs less than what queued requests are about to use; one in flight gives pages back
            gives_back = self.rows.computed[row] > self.rows.settled[row] + 1
            if tokens < self._least_chunk and not gives_back:
                if self.room.evict(wanted, must=True, even_awaited=True):
                    continue
                tokens = self.room.shrunk(before, row, most)
            granted = granted.copy()
            granted[fitting] = tokens
            # where it gets nothing and nobody makes room, it waits for a page; those behind it may still need none
            if not tokens and not gives_back and self._make_room(rows, fitting):
                rows = self.order()
                granted = self._share(self._wanted(rows), self.plan.batch_tokens)
            needs = self.room.needs(rows, granted)
        return rows, granted, needs

    def _make_room(self, rows: Ints, index: int) -> bool:
        """Takes pages back from captures, compacts, or preempts the last in line behind `index`. True: try again.

        Who was promised to stay gives way to the elder alone, after everyone else, and not while the elder has tokens
        in flight or others have chunks: pages come back when they settle.
        """
        if self.reuse.give_up_captures() or self.room.compact():
            return True
        behind = rows[index + 1 :]
        free = behind[~self.rows.is_reserved[behind]]
        in_flight = self.rows.computed[rows] - self.rows.settled[rows]
        is_elder_stuck = index == 0 and not in_flight[0] and in_flight.max() <= 1
        victims = behind if is_elder_stuck and not len(free) else free
        if not len(victims):
            return False
        self._preempt(int(victims[-1]), self.rows.requests[int(rows[index])].name)
        return True

    def _preempt(self, row: int, by: str) -> None:
        """Its pages are free for `by` now; its tokens stay: they are loaded from a tier or computed again, whichever is
        cheaper. Results in flight for it are stale."""
        ticket, request = self.tickets[row], self.rows.requests[row]
        computed = int(self.rows.computed[row])
        way = self.reuse.stores.way_back(computed, self.meter.seconds_for(computed, self.plan.batch_tokens))
        to_tier = way is None or way.is_load
        outputs = self._vacate(row, to_tier=to_tier)
        times = ticket.preemptions + 1
        names = ticket.root, ticket.keys, ticket.behind
        again = Waiting(request, ticket.arrival, ticket.claim, outputs, times, *names)
        again.is_counted, again.turn = True, ticket.turn
        reason = Reason(Why.NEEDS_PAGES, (by,))
        again.reason, again.may_load, again.way_back = Reason(Why.PREEMPTED, because=reason), to_tier, way
        self.queue.add(again, returning=True)
        self.events.publish(RequestPreempted(self.steps, request.name, reason, times, way))

    # ── admission ─────────────────────────────────────────────────────────

    def _admit_elder(self) -> None:
        """The elder never waits for a row, whatever its priority."""
        elder, order = self.queue.elder(), self.order()
        if elder is None or (len(order) and self.tickets[int(order[0])].arrival < elder.arrival):
            return
        assert self.rows.has_room(), "whoever was the elder before has left its row"
        row = self._enter(elder)
        self._report_admitted(row, self._try_load(row, elder, self.room.no_pages))

    def _admit(self, rows: Ints, granted: Ints, needs: Needs) -> tuple[Ints, Ints, Needs]:
        """Lets waiting requests in, in the order of their claims; one that does not fit yet lets smaller ones pass.

        It cannot be passed for ever: sooner or later it is the elder.
        """
        more: list[int] = []
        tokens, lacked = [], [needs]
        promised, budget, passed = sum_pages(needs), self.plan.batch_tokens - int(granted.sum()), 0
        self._look_again()
        refused = 0
        for waiting in self.queue.in_turn():
            if budget <= 0 or not self.rows.has_room():
                self._let_wait(waiting, self.why_full())
                break
            if passed == QUEUE_SIGHT or len(more) == MOST_NEWCOMERS:
                break
            if waiting.cached < refused and not self.queue.is_overdue(waiting):
                self._let_wait(waiting, Reason(Why.CACHED_FIRST))
                break
            entered = self._let_in(waiting, budget, promised)
            if entered is None:
                passed += 1
                if waiting.request.name not in self.rows.row_of and self.reuse.is_coming(waiting) is None:
                    refused = max(refused, waiting.cached)
                continue
            row, chunk, lacking = entered
            more.append(row)
            tokens.append(chunk)
            lacked.append(lacking)
            promised = add_pages(promised, sum_pages(lacking))
            budget -= chunk
        if not more:
            return rows, granted, needs
        return np.concatenate((rows, more)), np.concatenate((granted, tokens)), join_needs(lacked)

    def _let_in(self, waiting: Waiting, budget: int, promised: Pages) -> tuple[int, int, Needs] | None:
        """Its row, what it computes now, and what it lacks for that. None: it waits on, or a tier brings its tokens
        first."""
        if reason := self.why_not_yet(waiting):
            self._let_wait(waiting, reason)
            return None
        row = self._enter(waiting)
        if load := self._try_load(row, waiting, promised):
            self._report_admitted(row, load)
            return None
        chunk, lacking = self._first_chunk(row, budget, promised)
        if not chunk:
            self._return(row, Reason(Why.FIRST_PAGE))
            return None
        self._report_admitted(row)
        return row, chunk, lacking

    def _first_chunk(self, row: int, budget: int, promised: Pages) -> tuple[int, Needs]:
        """What a newcomer can compute beside those before it, and what it lacks; cached prefixes give way."""
        rows = np.array([row])
        granted = np.minimum(self._wanted(rows), budget)
        needs = self.room.needs(rows, granted)
        wanted = add_pages(promised, sum_pages(needs))
        if not self.room.is_short(wanted) or (not self.room.cache_is_in_use and self.room.evict(wanted, must=False)):
            return granted.item(0), needs
        tokens = self.room.shrunk(promised, row, granted.item(0) - 1)
        return tokens, self.room.needs(rows, np.array([tokens]))

    def _let_wait(self, waiting: Waiting, reason: Reason) -> None:
        self._expect(waiting)
        if waiting.reason != reason:
            waiting.reason = reason
            self.events.publish(RequestWaits(self.steps, waiting.request.name, reason))

    def _expect(self, waiting: Waiting) -> None:
        """What it would go on from is evicted last, and the more that is, the sooner it is let in."""
        tokens = self.reuse.expect(waiting)
        if tokens != waiting.cached:
            self.queue.prefer(waiting, tokens)

    def _look_again(self) -> None:
        """Queued requests of whose prompts more may be cached by now."""
        for waiting in list(self.reuse.changed.values()):
            self._expect(waiting)

    def why_full(self) -> Reason:
        """Nobody can be let in."""
        if not self.rows.has_room():
            return Reason(Why.ROWS, numbers={"rows": self.rows.count})
        return Reason(Why.STEP_TOKENS, numbers={"tokens": self.plan.batch_tokens})

    def why_not_yet(self, waiting: Waiting) -> Reason | None:
        """Policy, not capacity; None: let it in."""
        computing = self.reuse.is_coming(waiting)
        if computing is not None:
            return Reason(Why.PREFIX, (self.rows.requests[computing].name,))
        if waiting.preemptions >= MOST_PREEMPTIONS and not self._can_all_stay(waiting):
            return Reason(Why.MUST_STAY, numbers={"times": waiting.preemptions})
        if not self._is_likely_to_last(waiting):
            return Reason(Why.MEMORY)
        return None

    def likely_lengths(self, rows: Ints) -> Ints:
        """What running rows are likely to reach; their limit where they were promised to stay."""
        state, reserved = self.rows, self.rows.is_reserved[rows]
        likely: Ints = np.maximum(state.known[rows] + ONE, state.prompt[rows] + int(self.typical_output))
        if np.count_nonzero(reserved):
            likely = np.where(reserved, state.limit[rows], likely)
        return np.asarray(np.minimum(likely, state.limit[rows]), dtype=np.int64)

    def likely_length(self, waiting: Waiting) -> int:
        prompt, known = len(waiting.request.prompt), len(waiting.request.prompt) + len(waiting.outputs)
        return min(max(known + 1, prompt + int(self.typical_output)), waiting.request.limit)

    def _is_likely_to_last(self, waiting: Waiting) -> bool:
        """Would everyone fit at the length they are likely to reach, in addition to prefixes that other queued requests
        are about to use? Pages that several requests hold count once; where there are states, which are not shared,
        only as long as part of the pool stays free of requests. Where prefixes are reused, a chunk of the newcomer
        counts too: it would be cut, or evict some of them."""
        rows = self.order()
        lengths = np.concatenate((self.likely_lengths(rows), (self.likely_length(waiting),)))
        limits = np.concatenate((self.rows.limit[rows], (waiting.request.limit,))) if self.plan.lookahead else lengths
        share, shared = self.reuse.index.hot_share(waiting.awaits), self.reuse.shared_pages(waiting)
        is_shared, new = any(map(any, shared)), np.ones_like(lengths)
        if share or is_shared or waiting.cached:
            new[-1] = max(1, min(self.plan.batch_tokens, waiting.known - waiting.cached))
        if not self.reuse.index.coverage.has_states:
            return self.room.can_hold(lengths, limits, new, shared, share)
        if self.room.can_hold(lengths, limits, new, kept_share=share):
            return True
        return is_shared and self.room.can_hold(lengths, limits, new, shared, max(share, STATES_SHARE))

    def _can_all_stay(self, *newcomers: Waiting) -> bool:
        """Would everyone fit up to the longest they may become?"""
        return self.room.can_stay([*self.rows.limit[self.order()].tolist(), *(one.request.limit for one in newcomers)])

    # ── loads ─────────────────────────────────────────────────────────────

    def _try_load(self, row: int, waiting: Waiting, promised: Pages) -> Load | None:
        """Lets a tier bring more of a prompt than was found here, if the request can then stay to its end."""
        tokens = self.loads.offer(waiting)
        if tokens < waiting.hit_tokens + self.reuse.index.unit:
            return None
        if self.order()[0] != row and not self._can_all_stay():
            return None
        if not self.room.make_at(row, tokens, promised):
            return None
        held_tokens = int(self.rows.settled[row])
        for memory in self.memories:
            memory.keep_growing(row)
            memory.begin_at(row, tokens)
        self.rows.settled[row] = self.rows.computed[row] = tokens
        self.rows.is_loading[row] = self.rows.is_reserved[row] = True
        self.reuse.skip(row)
        return self.loads.begin(row, waiting, self._now, held_tokens)

    def _end_loads(self) -> None:
        """Rows whose loads are done go on; those whose loads failed or are late begin again without."""
        for over in list(self.loads.over(self._now)):
            request, ticket = self.rows.requests[over.row], self.tickets[over.row]
            if over.is_staged:
                self._landed.append((over.load.number, over.row))
            if not over.is_over:
                continue
            load = over.load
            if over.reason is None:
                self.rows.is_loading[over.row] = False
                ticket.loaded_tokens = load.tokens - load.held_tokens
                self.events.publish(
                    LoadFinished(self.steps, request.name, load.tokens, load.number, ticket.preemptions)
                )
            else:
                ticket.may_load, ticket.offer, ticket.again = over.again is not None, None, over.again
                self.events.publish(LoadFailed(self.steps, request.name, over.reason, load.tokens, load.number))
                self._return(over.row, Reason(Why.LOAD_FAILED, because=over.reason))

    def _enter(self, waiting: Waiting) -> int:
        self.queue.remove(waiting)
        self.queue.admissions += 1
        row = self.rows.enter(waiting.request, waiting.outputs)
        self.tickets[row] = self._entered[row] = waiting
        bisect.insort(self._line, (waiting.claim, row))
        self._order_is_stale = True
        self.reuse.start(row, waiting)
        self.rows.is_reserved[row] = waiting.preemptions >= MOST_PREEMPTIONS
        return row

    def _report_admitted(self, row: int, load: Load | None = None) -> None:
        """A request was let in, and perhaps a tier brings its tokens: always in this order."""
        waiting, step = self.tickets[row], self.steps
        name, missed = waiting.request.name, {}
        if not waiting.preemptions and not waiting.is_reported:
            missed, waiting.is_reported = waiting.gap.numbers(), True
        numbers = waiting.hit_tokens, self.rows.known.item(row), waiting.preemptions
        self.events.publish(RequestAdmitted(step, name, *numbers, waiting.miss, **missed))
        if load is not None:
            self.events.publish(LoadStarted(step, name, load.tokens, load.number))

    def _return(self, row: int, reason: Reason) -> None:
        """A row that could not start goes back as it came."""
        ticket = self.tickets[row]
        self._vacate(row, hand_over=False)
        self.queue.add(ticket, returning=True)
        self._let_wait(ticket, reason)

    # ── steps leave and come back ─────────────────────────────────────────

    def _launch(self, rows: Ints, counts: Ints, needs: Needs) -> Step:
        clears = []
        for stage, (memory, own) in enumerate(zip(self.memories, needs, strict=True)):
            for kind, pages in memory.grow(own):
                clears.append((stage, kind, pages))
        state = self.rows
        starts, expected = state.computed[rows], state.expected[rows]
        ends = starts + counts
        samples = ends == expected
        drafts, tokens = self.drafts.add(rows, counts, samples, state.batch(rows, starts, counts))
        state.computed[rows] = ends
        counts = counts if drafts is None else counts + drafts
        state.expected[rows] = expected + samples
        captures = self.reuse.capture(rows, starts, ends)
        epochs, copies, loads = state.epoch[rows], tuple(self._copies), tuple(self._landed)
        entered = [(row, one.request, one.outputs) for row, one in self._entered.items()]
        self._entered.clear()
        step = Step(
            self.steps,
            rows,
            starts,
            counts,
            samples,
            epochs,
            tokens,
            tuple(entered),
            self._views,
            copies,
            loads,
            tuple(clears),
            drafts,
            self.reuse.stores.take_due(),
            captures,
        )
        self.events.step += 1
        self._copies.clear()
        self._landed.clear()
        if self.policy is Policy.FAIR:
            for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
                self.shares.charge(state.requests[row].tenant, count)
        self.flying.append(step)
        self.events.publish(StepLaunched(self.steps, len(rows), len(tokens)))
        return step

    def apply(self, result: StepResult) -> list[Ended]:
        """Settles the oldest step in flight, hands out its tokens, and ends what is over."""
        step = self.flying.pop(0)
        assert step.number == result.number, "results come back in the order of launch"
        state, rows, samples = self.rows, step.rows, step.samples
        current = state.epoch[rows] == step.epochs
        computed, tokens = self.drafts.accept(step, result, current)
        if np.count_nonzero(current) < len(rows):
            rows, samples, computed, tokens = (
                rows[current],
                samples[current],
                computed[current],
                tokens[current[samples]],
            )
        sampled = rows[samples]
        settled = state.settled[rows] + computed
        state.settled[rows] = settled
        state.append(sampled, tokens)
        self.reuse.remember(rows, settled)
        for memory in self.memories:
            memory.settle(rows, settled)
        return self._ended(sampled, tokens)

    def abandon(self) -> list[Ended]:
        """Steps in flight do not come back: ends everyone who has a row, hands nothing over, and forgets what the pool
        keeps, for what should have been copied there may be missing. Tiers keep what they have."""
        tickets = list(self.tickets.items())
        ended = [self._over(one, self._vacate(row, hand_over=False), Ending.CANCELLED) for row, one in tickets]
        for number in [number for step in self.flying for number, _ in step.loads]:
            self.loads.drop(number)
        self.reuse.catch_up()
        self.reuse.index.drop()
        self.reuse.stores.give_up(self.flying)
        self.flying.clear()
        return ended

    def _ended(self, rows: Ints, tokens: Ints) -> list[Ended]:
        state = self.rows
        stopped = (state.stops.take(rows, axis=0) == tokens[:, None]).nonzero()[0].tolist()
        full = (state.known[rows] >= state.limit[rows]).nonzero()[0].tolist()
        ended = []
        for place in sorted({*stopped, *full}):
            row = rows.item(place)
            self._learn(state.output_counts.item(row))
            ended.append(self._end(row, Ending.STOP if place in stopped else Ending.LENGTH))
        return ended

    def _learn(self, outputs: int) -> None:
        self.typical_output += (outputs - self.typical_output) / 32
