"""Who computes how many tokens in the next step.

    1. running rows, the elder first, then by priority and arrival, share the step's token budget
    2. if pages are short: shrink the chunk, compact, preempt the youngest; never at the elder's expense
    3. what is left of the budget lets waiting requests in, if their memory is likely to last

**Progress.** The elder (smallest arrival of all that are accepted and unfinished) has first claim to tokens, rows and
pages. It was accepted because it could run alone, one token at a time; everyone else can be preempted, and compaction
removes what fragmentation holds. So whenever nothing is in flight, the next step computes at least one of its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt

from quire.cache.compaction import compact
from quire.cache.memory import StageMemory
from quire.core.errors import NeverFits
from quire.core.events import Event, Listener, What
from quire.core.request import Ending, Request
from quire.core.rules import Rules
from quire.core.search import greatest
from quire.core.step import Step, StepResult
from quire.kinds import counts
from quire.plan import bound
from quire.plan.plan import Plan
from quire.scheduler.endings import Ended
from quire.scheduler.reuse import Copy, Reuse
from quire.scheduler.rows import Ints, Rows
from quire.scheduler.waiting import Queue, Waiting

QUEUE_SIGHT = 8
"""How far down the queue a step looks for someone who fits."""


class Scheduler:
    def __init__(self, plan: Plan, rules: Rules, listeners: Sequence[Listener] = ()) -> None:
        self.plan = plan.require_fit()
        self.memories = [StageMemory(stage, plan, plan.max_requests) for stage in plan.stages if stage.kinds]
        self.rows = Rows(plan.max_requests)
        self._copies: list[Copy] = []
        self.reuse = Reuse(plan, self.memories, self.rows, self._copies)
        self.queue = Queue(rules.queue_bound)
        self.listeners = tuple(listeners)
        self.tickets: dict[int, Waiting] = {}
        """How each running row came in: its arrival and its preemptions."""
        self._order = np.empty(0, dtype=np.int64)
        self._order_is_stale = False
        self._cache_is_in_use = False
        """Newcomers found nothing to forget since the last request left."""
        self._arrivals = 0
        self._steps = 0
        self.flying: list[Step] = []
        self.typical_output = 128.0
        """Learnt from what ended: how many tokens a request yields."""

    # ── requests come and go ──────────────────────────────────────────────

    def submit(self, request: Request) -> None:
        """Accepts a request, or says at once that it could never run (or that too many wait)."""
        if not bound.admits(self.plan, request.limit):
            self._tell(What.REFUSED, request, self._never(request), tokens=request.limit)
            raise NeverFits(self._never(request))
        waiting = Waiting(request, self._arrivals)
        self.queue.add(waiting)
        self._arrivals += 1
        self.reuse.name(waiting)
        self._tell(What.ACCEPTED, request, prompt=len(request.prompt), max_tokens=request.max_tokens)

    def _never(self, request: Request) -> str:
        stages = [stage for stage in self.plan.stages if stage.kinds]
        need = max(bound.minimum(s.kinds, request.limit, self.plan.lookahead, self.plan.reserved_pages) for s in stages)
        have = min(stage.sheets for stage in stages)
        return (
            f"request {request.name} of {len(request.prompt):,} + {request.max_tokens:,} tokens can never run: it "
            f"needs {need:,} sheets and there are {have:,}; the longest that fits is {self.plan.max_length:,} tokens"
        )

    def cancel(self, name: str, ending: Ending = Ending.CANCELLED) -> Ended | None:
        """Ends a request wherever it is; None if it is not here."""
        waiting = self.queue.find(name)
        if waiting is not None:
            self.queue.remove(waiting)
            self.reuse.forget(waiting)
            self._tell(What.ENDED, waiting.request, ending.value, outputs=len(waiting.outputs))
            return Ended(waiting.request, waiting.outputs, ending)
        row = self.rows.row_of.get(name)
        return None if row is None else self._end(row, ending)

    def _end(self, row: int, ending: Ending) -> Ended:
        request, ticket = self.rows.requests[row], self.tickets[row]
        ended = Ended(request, self._vacate(row), ending)
        self.reuse.forget(ticket)
        self._tell(What.ENDED, request, ending.value, outputs=len(ended.outputs))
        return ended

    def _vacate(self, row: int, hand_over: bool = True) -> npt.NDArray[np.int32]:
        self.reuse.leave(row, self.tickets[row], hand_over)
        for memory in self.memories:
            memory.release(row)
        del self.tickets[row]
        self._order_is_stale = True
        self._cache_is_in_use = False
        self.reuse.index.try_again()
        return self.rows.leave(row)

    def _tell(self, what: What, request: Request | None = None, reason: str = "", **numbers: int) -> None:
        if self.listeners:
            event = Event(what, self._steps, request.name if request else "", reason, numbers)
            for listener in self.listeners:
                listener(event)

    def is_idle(self) -> bool:
        return not self.tickets and not len(self.queue) and not self.flying

    # ── a step ────────────────────────────────────────────────────────────

    def schedule(self) -> Step | None:
        """The next step, or None if nothing can be computed until one in flight comes back."""
        self._admit_elder()
        rows = self.order()
        granted = self._share(self._wanted(rows), self.plan.batch_tokens)
        rows, granted = self._fit(rows, granted)
        rows, granted = self._admit(rows, granted, self.plan.batch_tokens - int(granted.sum()))
        chosen = granted > 0
        assert self.flying or not len(rows) or chosen[0], "the elder makes progress whenever nothing is in flight"
        return self._launch(rows[chosen], granted[chosen]) if chosen.any() else None

    def order(self) -> Ints:
        """Running rows: the elder first, then by claim."""
        if self._order_is_stale:
            rows = sorted(self.tickets, key=lambda row: self.tickets[row].claim)
            elder = min(self.tickets, key=lambda row: self.tickets[row].arrival, default=None)
            first = [] if elder is None else [elder]
            self._order = np.array(first + [row for row in rows if row != elder], dtype=np.int64)
            self._order_is_stale = False
        return self._order

    def _wanted(self, rows: Ints) -> Ints:
        """Tokens each row could compute now; no row has more than one step's budget in flight."""
        state = self.rows
        ready = state.known[rows] + state.pending[rows] - state.computed[rows]
        ready = np.minimum(ready, np.minimum(state.limit[rows] - 1, state.stop_at[rows]) - state.computed[rows])
        flying = state.computed[rows] - state.settled[rows]
        return np.asarray(np.clip(ready, 0, self.plan.batch_tokens - flying), dtype=np.int64)

    @staticmethod
    def _share(wanted: Ints, budget: int) -> Ints:
        """First come, first served from the step's one budget: chunks shrink before anyone waits."""
        before = np.cumsum(wanted) - wanted
        return np.asarray(np.clip(budget - before, 0, wanted), dtype=np.int64)

    def _needs(self, memory: StageMemory, rows: Ints, granted: Ints) -> list[Ints]:
        state = self.rows
        settled = state.settled[rows]
        new = state.computed[rows] - settled + granted
        if self.plan.lookahead:
            ahead = np.clip(state.limit[rows] - settled - new, 0, self.plan.lookahead)
        else:
            ahead = np.zeros_like(new)
        needs = memory.needs(rows, settled, new, ahead)
        return needs if granted.all() else [need * (granted > 0) for need in needs]

    def _fitting(self, rows: Ints, granted: Ints) -> int:
        """How many rows, from the first on, can have what they were granted, on every stage."""
        return min(memory.fitting(self._needs(memory, rows, granted)) for memory in self.memories)

    def _fit(self, rows: Ints, granted: Ints) -> tuple[Ints, Ints]:
        """Makes room where pages are short, for the first in line and at the expense of the last."""
        while True:
            fitting = self._fitting(rows, granted)
            if fitting == len(rows):
                return rows, granted
            if self._evict(rows[: fitting + 1], granted[: fitting + 1], must=True):
                continue
            granted = granted.copy()
            granted[fitting] = self._shrunk(rows, granted, fitting)
            if granted[fitting]:
                continue
            if not self._make_room(rows, fitting):
                continue  # this row waits for a page; those behind it may still need none
            rows = self.order()
            granted = self._share(self._wanted(rows), self.plan.batch_tokens)

    def _evict(self, rows: Ints, granted: Ints, must: bool) -> bool:
        """Forgets cached prefixes until all these rows fit. False: they do not, and no more can be forgotten."""
        while tokens := self.reuse.index.evict(self._units_short(rows, granted), must):
            self._tell(What.EVICTED, tokens=tokens)
            if self._fitting(rows, granted) == len(rows):
                return True
        self._cache_is_in_use = True
        return False

    def _units_short(self, rows: Ints, granted: Ints) -> int:
        """About how many units of a chain would make up for the sheets that are missing, at least one."""
        missing = 0
        for memory in self.memories:
            needs = [int(need.sum()) for need in self._needs(memory, rows, granted)]
            missing += memory.pool.sheets_short(needs) * memory.stage.sheet_bytes
        return 1 + int(missing // max(1.0, self.reuse.index.unit * self.plan.bytes_per_token))

    def _shrunk(self, rows: Ints, granted: Ints, index: int) -> int:
        """The most tokens that row `index` can have behind those before it."""
        before, upto = granted[:index], rows[: index + 1]
        return greatest(0, int(granted[index]) - 1, lambda n: self._fitting(upto, np.append(before, n)) > index)

    def _make_room(self, rows: Ints, index: int) -> bool:
        """Compacts, or preempts the last in line if that is not `index` itself. True: try again."""
        for stage, memory in enumerate(self.memories):
            moves = compact(memory)
            self._copies += [(stage, move.kind, move.source, move.target) for move in moves]
            for move in moves:
                self._tell(What.COMPACTED, reason=memory.stage.kinds[move.kind].name, pages=len(move.source))
            if moves:
                return True
        victim = int(rows[-1])
        if len(rows) - 1 <= index:
            return False
        self._preempt(victim, f"row {int(rows[index])} needs its pages")
        return True

    def _preempt(self, row: int, reason: str) -> None:
        """Recompute later: pages go back now, tokens stay. Results in flight for it are stale."""
        ticket, request = self.tickets[row], self.rows.requests[row]
        outputs = self._vacate(row)
        again = Waiting(request, ticket.arrival, outputs, ticket.preemptions + 1, ticket.root, ticket.keys)
        again.reason = f"preempted: {reason}"
        self.queue.add(again, returning=True)
        self._tell(What.PREEMPTED, request, reason, times=again.preemptions)

    # ── admission ─────────────────────────────────────────────────────────

    def _admit_elder(self) -> None:
        """The elder never waits for a row, whatever its priority."""
        elder, order = self.queue.elder(), self.order()
        if elder is None or (len(order) and self.tickets[int(order[0])].arrival < elder.arrival):
            return
        if not self.rows.has_room():
            self._preempt(int(order[-1]), "the elder needs its row")
        self._enter(elder)

    def _admit(self, rows: Ints, granted: Ints, budget: int) -> tuple[Ints, Ints]:
        """Lets waiting requests in, in the order of their claims; one that does not fit yet lets smaller ones pass.

        It cannot be passed for ever: sooner or later it is the elder.
        """
        for waiting in list(islice(self.queue, QUEUE_SIGHT)):
            if budget <= 0 or not self.rows.has_room():
                break
            if self.reuse.is_coming(waiting) is not None:
                waiting.reason = "a running request is computing its prefix"
                continue
            if not self._is_likely_to_last(waiting):
                waiting.reason = "its pages and those that the running ones are likely to need exceed the pool"
                continue
            row = self._enter(waiting)
            more_rows = np.append(rows, row)
            more = np.append(granted, min(budget, int(self._wanted(more_rows[-1:])[0])))
            if self._fitting(more_rows, more) < len(more_rows):
                evicted = not self._cache_is_in_use and self._evict(more_rows, more, must=False)
                if not evicted:
                    more[-1] = self._shrunk(more_rows, more, len(more_rows) - 1)
            if not more[-1]:
                self._return(row, "no page is free for its first token")
                continue
            rows, granted = more_rows, more
            budget -= int(more[-1])
        return rows, granted

    def _is_likely_to_last(self, waiting: Waiting) -> bool:
        """Policy, not capacity: would everyone fit at the length they are likely to reach?"""
        rows = self.order()
        known = np.append(self.rows.known[rows], len(waiting.request.prompt) + len(waiting.outputs))
        limit = np.append(self.rows.limit[rows], waiting.request.limit)
        prompt = np.append(self.rows.prompt[rows], len(waiting.request.prompt))
        likely = np.maximum(known + 1, prompt + int(self.typical_output))
        if waiting.preemptions > 1:
            likely[-1] = limit[-1]  # it was sent away twice: it comes back only if it can stay
        likely = np.minimum(likely, limit)
        for memory in self.memories:
            pages = bound.demand(memory.stage.kinds, likely - 1, counts(1), counts(self.plan.lookahead), limit)
            totals = [np.asarray(count.sum(), dtype=np.int64) for count in pages]
            if int(bound.sheets_needed(memory.stage.kinds, totals, self.plan.reserved_pages)) > memory.stage.sheets:
                return False
        return True

    def _enter(self, waiting: Waiting) -> int:
        self.queue.remove(waiting)
        row = self.rows.enter(waiting.request, waiting.outputs)
        self.tickets[row] = waiting
        self._order_is_stale = True
        self.reuse.start(row, waiting)
        numbers = {"hit_tokens": waiting.hit_tokens, "tokens": int(self.rows.known[row])}
        self._tell(What.ADMITTED, waiting.request, waiting.miss, **numbers, preemptions=waiting.preemptions)
        return row

    def _return(self, row: int, reason: str) -> None:
        """A row that could not start goes back as it came."""
        ticket = self.tickets[row]
        self._vacate(row, hand_over=False)
        ticket.reason = reason
        self.queue.add(ticket, returning=True)

    # ── steps leave and come back ─────────────────────────────────────────

    def _launch(self, rows: Ints, counts: Ints) -> Step:
        clears = []
        for stage, memory in enumerate(self.memories):
            fresh = memory.grow(rows, self._needs(memory, rows, counts))
            clears += [(stage, kind, pages) for kind, pages in fresh]
        state = self.rows
        starts = state.computed[rows]
        samples = starts + counts == state.known[rows] + state.pending[rows]
        state.computed[rows] += counts
        state.pending[rows] += samples
        epochs, copies = state.epoch[rows], tuple(self._copies)
        step = Step(self._steps, rows, starts, counts, samples, epochs, copies, clears=tuple(clears))
        self._steps += 1
        self._copies.clear()
        self.flying.append(step)
        self._tell(What.STEP, rows=len(rows), tokens=step.tokens)
        return step

    def apply(self, result: StepResult) -> list[Ended]:
        """Settles the oldest step in flight, hands out its tokens, and ends what is over."""
        step = self.flying.pop(0)
        assert step.number == result.number, "results come back in the order of launch"
        current = self.rows.epoch[step.rows] == step.epochs
        rows, counts = step.rows[current], step.counts[current]
        self.rows.settled[rows] += counts
        sampling = step.samples & current
        self._yield(step.rows[sampling], result.tokens[current[step.samples]])
        self.reuse.remember(rows, self.tickets)
        for memory in self.memories:
            memory.settle(rows, self.rows.settled[rows])
        return self._ended(step.rows[sampling], result.tokens[current[step.samples]])

    def _yield(self, rows: Ints, tokens: Ints) -> None:
        self.rows.append(rows, tokens)
        self.rows.pending[rows] -= 1

    def _ended(self, rows: Ints, tokens: Ints) -> list[Ended]:
        state = self.rows
        stopped = (state.stops[rows] == tokens[:, None]).any(axis=1)
        over = stopped | (state.known[rows] >= state.limit[rows])
        ended = []
        for index in np.flatnonzero(over):
            row = int(rows[index])
            self._learn(int(state.output_counts[row]))
            ended.append(self._end(row, Ending.STOP if stopped[index] else Ending.LENGTH))
        return ended

    def _learn(self, outputs: int) -> None:
        self.typical_output += (outputs - self.typical_output) / 32
