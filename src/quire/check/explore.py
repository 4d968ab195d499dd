"""Every schedule of a small system: whatever may happen next is tried, from every state, until no state is new.

    submit ─┬─ schedule ─┬─ apply …            the real scheduler; only the world around it is chosen:
            │            ├─ abort r0 …         the next request comes, a step is scheduled, the oldest result comes
            └─ submit …  └─ finish load …      back with any number of its drafts accepted, someone gives up, a load is
                                               done, fails or is waited for in vain, the cache is evicted or compacted

States are merged where their essence is equal (see essence.py), kept and brought back by snapshot.py.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from quire.check import state
from quire.check.definitions import Ints, Violation
from quire.check.essence import check_known, check_leaves, essence
from quire.check.leaks import check_owners
from quire.check.leases import broken_leases, leased_tokens
from quire.check.prefixes import find_known
from quire.check.promises import check_books, check_ended, check_nothing_left
from quire.check.scripts import script_for
from quire.check.small import Small
from quire.check.snapshot import Kept, Snapshots
from quire.check.stages import check_disjoint, running_before
from quire.core.events import Event, RequestAdmitted
from quire.core.request import Request, Tokens
from quire.core.step import Step, StepResult
from quire.core.tier import TransferDone, TransferFailed
from quire.prefix.forecast import Recency
from quire.scheduler.scheduler import Ended, Scheduler
from quire.tiers.in_memory import NEVER, InMemoryTier, Transfer

Action = tuple[str, int]
STALE = 1
"""A token that no script contains."""
LOOK_AT_CLOCK, LOOK_AT_ARRAYS = 512, 4096
"""After so many transitions, and states."""


class ChosenTier(InMemoryTier):
    """A tier whose answers the exploration chooses. A load that is cancelled is answered all the same, too late."""

    def __init__(self, units: int) -> None:
        super().__init__(lambda: self.now, units, NEVER)
        self.now = 0.0

    def cancel(self, number: int) -> None:
        if number in self.transfers:
            self.answer(TransferDone(number))

    def open(self) -> dict[str, Transfer]:
        """By request: the loads that are not answered."""
        return {one.load.request: one for one in self.transfers.values() if one.due == NEVER}


class Guesses:
    """Always has an idea; whether it comes true is chosen when the step comes back."""

    def enter(self, row: int, tokens: Tokens, scope: str) -> None: ...

    def extend(self, rows: Ints, tokens: Tokens) -> None: ...

    def propose(self, rows: Ints, counts: Ints, step_tokens: int) -> Mapping[int, Tokens]:
        del rows, step_tokens
        return {place: np.full(count, STALE, dtype=np.int32) for place, count in enumerate(counts.tolist())}


class World:
    """A scheduler, and what is outside it: who came, who ended, which results and loads are on their way."""

    def __init__(self, small: Small) -> None:
        self.small = small
        self.tier = ChosenTier(small.stored)
        tier = self.tier if small.stored else None
        plan, rules, listeners = small.plan(), small.rules(), (self._on_event,)
        self.scheduler = Scheduler(plan, rules, tier, listeners, Guesses(), forecast=Recency(), overlap=small.overlap)
        self.scheduler.admission.typical_output = small.typical_output
        self.requests = small.work()
        self.scripts = [script_for(request) for request in self.requests]
        self.came = 0
        self.ended: list[int] = []

    def _on_event(self, event: Event) -> None:
        """Whoever begins with the tokens of a lease starts after them."""
        if isinstance(event, RequestAdmitted):
            request = self.requests[int(event.request[1:])]
            tokens = leased_tokens(self.scheduler, request)
            if event.hit_tokens < tokens:
                raise Violation(f"{request.name} begins with {tokens} leased tokens, and starts at {event.hit_tokens}")

    def actions(self) -> list[Action]:
        """Everything that may happen next."""
        scheduler, possible = self.scheduler, []
        if scheduler.flying:
            possible += [("apply", number) for number in range(self._endings(scheduler.flying[0]))]
        if len(scheduler.flying) < self.small.overlap and (scheduler.running.tickets or len(scheduler.queue)):
            possible.append(("schedule", 0))
        if self.came < len(self.requests) and self._has_tokens(self.came):
            possible.append(("submit", self.came))
        for name in self.tier.open():
            possible += [("finish", int(name[1:])), ("fail", int(name[1:]))]
        if any(deadline > self.tier.now for _, _, deadline in scheduler.loads._open.values()):
            possible.append(("wait", 0))
        if self.small.evicts and state.nodes(scheduler).by_key:
            possible.append(("evict", 0))
        if self.small.evicts and state.can_compact(scheduler):
            possible.append(("compact", 0))
        possible += [("release", number) for number in range(len(state.held_leases(scheduler)))]
        if self.small.aborts:
            possible += [("abort", number) for number in range(self.came) if number not in self.ended]
        return possible

    def do(self, action: Action) -> None:
        what, number = action
        if what == "submit":
            self._submit(number)
        elif what == "schedule":
            self._schedule()
        elif what == "apply":
            self._apply(number)
        elif what == "evict":
            state.evict(self.scheduler)
        elif what == "release":
            self.scheduler.leasing.release(sorted(state.held_leases(self.scheduler))[number])
        elif what == "compact":
            state.compact(self.scheduler)
        elif what == "wait":
            self.tier.now += self.small.rules().load_seconds
        elif what in ("finish", "fail"):
            load = self.tier.open()[self.requests[number].name].load.number
            self.tier.answer(TransferDone(load) if what == "finish" else TransferFailed(load, ""))
        else:
            ended = self.scheduler.cancel(self.requests[number].name)
            if ended is None:
                raise Violation(f"request r{number} was accepted and is nowhere")
            self._end(ended, was_aborted=True)

    def _has_tokens(self, number: int) -> bool:
        """A fork comes when its parent has the tokens that it continues, or will not have them any more."""
        parent = self.small.parent(number)
        known = None if parent is None else find_known(self.scheduler, parent)
        return known is None or known >= len(self.requests[number].prompt)

    def _submit(self, number: int) -> None:
        request, parent = self.requests[number], self.small.parent(number)
        row = self.scheduler.rows.row_of.get(parent or "")
        if row is not None:
            self.scheduler.reuse.branch_off(row, self.scheduler.running.tickets[row], len(request.prompt) - 1)
        self.scheduler.submit(request)
        self.came += 1

    def _schedule(self) -> None:
        scheduler = self.scheduler
        is_free = not scheduler.flying
        step = scheduler.schedule(self.tier.now)
        awaited = self.tier.open()
        if step is not None and self.small.stages > 1:
            check_disjoint(step, running_before(scheduler, scheduler.flying[:-1]))
        if any(one.begun + self.small.rules().load_seconds <= self.tier.now for one in awaited.values()):
            raise Violation("a load is waited for past its deadline")
        elder = next(number for number in range(self.came) if number not in self.ended)
        row = scheduler.rows.row_of.get(f"r{elder}")
        if f"r{elder}" in awaited:
            return
        if is_free and (step is None or row not in step.rows.tolist()):
            raise Violation(f"stuck: nothing is in flight and no token of the elder, r{elder}, is scheduled")

    def _drafts(self, step: Step) -> list[int]:
        """Of each row that samples; of rows that were left meanwhile none, for nobody sees what becomes of them."""
        is_there = self.scheduler.rows.epoch[step.rows] == step.epochs
        return [0] * int(step.samples.sum()) if step.drafts is None else (step.drafts * is_there)[step.samples].tolist()

    def _endings(self, step: Step) -> int:
        """In how many ways its drafts can come true."""
        return math.prod(count + 1 for count in self._drafts(step))

    def _apply(self, number: int) -> None:
        """`number` says of every row how many of its drafts come true."""
        step, accepted = self.scheduler.flying[0], []
        for count in self._drafts(step):
            number, own = divmod(number, count + 1)
            accepted.append(own)
        tokens = self._tokens(step, accepted)
        counts = None if step.drafts is None else np.array(accepted, dtype=np.int64) + 1
        for ended in self.scheduler.apply(StepResult(step.number, tokens, counts)):
            self._end(ended, was_aborted=False)
        self.scheduler.admission.typical_output = self.small.typical_output  # it does not drift: one is explored

    def _tokens(self, step: Step, accepted: list[int]) -> Ints:
        """What the step yields; rows that were left meanwhile yield something that nobody may see."""
        rows = self.scheduler.rows
        tokens: list[int] = []
        ends = step.ends if step.drafts is None else step.ends - step.drafts
        columns = (step.rows, ends, step.epochs)
        entries = zip(*(column[step.samples].tolist() for column in columns), accepted, strict=True)
        for row, end, epoch, count in entries:
            is_there = rows.epoch[row] == epoch
            own = self.scripts[int(rows.requests[row].name[1:])].tokens.tolist() if is_there else []
            tokens += own[end : end + count + 1] if is_there else [STALE]
        return np.array(tokens, dtype=np.int64)

    def _end(self, ended: Ended, was_aborted: bool) -> None:
        number = int(ended.request.name[1:])
        check_ended(ended, self.scripts[number], was_aborted, now=0.0)
        self.ended.append(number)

    def digest(self) -> bytes:
        """Answers on their way to a load that nobody waits for decide nothing."""
        ready = [
            (one.load.request, type(one.answer))
            for number, one in self.tier.transfers.items()
            if number in self.scheduler.loads._open and one.due != NEVER
        ]
        late = self.tier.now - self.scheduler.loading._now
        return essence(self.scheduler, (self.came, sorted(self.ended), sorted(self.tier.open()), ready, late))

    def accepted(self) -> dict[str, Request]:
        return {one.name: one for number, one in enumerate(self.requests[: self.came]) if number not in self.ended}

    def is_over(self) -> bool:
        return len(self.ended) == len(self.requests) and not self.scheduler.flying


@dataclass(slots=True)
class Explored:
    """What was seen of one system."""

    system: str
    states: int = 0
    transitions: int = 0
    ends: int = 0
    seconds: float = 0.0
    is_complete: bool = False
    violation: str = ""
    path: tuple[str, ...] = ()
    """What happened, from the beginning up to the violation."""


def explore(small: Small, most_seconds: float = math.inf) -> Explored:
    """Depth first, until every state was seen, something breaks, or time is over."""
    return _Exploration(small).run(time.monotonic() + most_seconds)


class _Exploration:
    def __init__(self, small: Small) -> None:
        self.world = World(small)
        self.found = Explored(small.name, states=1)
        self.snapshots = Snapshots(self.world)
        check_known([owner for owner in self.snapshots.owners if owner not in (self.world, self.world.tier)])
        self.seen = {self.world.digest()}
        self.stack: list[tuple[Kept, list[Action], Action]] = []
        """From the beginning to where we are: a state, what is left to be tried from it, and what led to it."""
        self._go_on_from(("begin", 0))

    def run(self, until: float) -> Explored:
        begun, found = time.monotonic(), self.found
        while self.stack and not found.violation and (found.transitions % LOOK_AT_CLOCK or time.monotonic() < until):
            kept, actions, _ = self.stack[-1]
            if not actions:
                self.stack.pop()
                continue
            self.snapshots.restore(kept)
            self._try(actions.pop())
        found.is_complete = not self.stack and not found.violation
        found.seconds = time.monotonic() - begun
        return found

    def _try(self, action: Action) -> None:
        self.found.transitions += 1
        try:
            self.world.do(action)
            digest = self.world.digest()
            if digest not in self.seen:
                self.seen.add(digest)
                self.found.states += 1
                self._check()
                self._go_on_from(action)
        except Exception as error:  # whatever breaks is a finding
            self.found.violation = f"{type(error).__name__}: {error}"
            taken = [*(entry[-1] for entry in self.stack[1:]), action]
            self.found.path = tuple(f"{what} {number}" for what, number in taken)

    def _check(self) -> None:
        check_leaves(self.world.scheduler)
        if self.found.states % LOOK_AT_ARRAYS == 0:
            self.snapshots.check_complete()
        if broken := broken_leases(self.world.scheduler):
            raise Violation(f"lease {broken[0]} is held, and no request can start after its tokens")
        if self.world.is_over():
            self.found.ends += 1
            for name in state.held_leases(self.world.scheduler):
                self.world.scheduler.leasing.release(name)
            check_nothing_left(self.world.scheduler)
        else:
            check_books(self.world.scheduler)
            check_owners(self.world.scheduler, self.world.accepted())

    def _go_on_from(self, action: Action) -> None:
        if not self.world.is_over():
            self.stack.append((self.snapshots.keep(), self.world.actions(), action))
