"""Why a request waits, who holds what it lacks, and when it can run. A question: nothing changes by asking.

r7 waits because its pages and those that the running ones are likely to need exceed the pool
  full: needs 64 pages, 42 are free but running requests are likely to take 30, 52 short: r1 holds 120, r2 holds 64
there is room for it when r2 has ended; it runs in at most 980 steps, whoever comes

**At most.** The elder gets a token in each step, or in each n-th where n are in flight, and keeps what it has computed.
Others may be sent away and begin again. So everyone older has ended, and it is the elder itself and runs, after all the
tokens of those before it, n steps for each. Loads from a tier that they wait for come on top, by their deadlines.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quire.cache.memory import StageMemory
from quire.cache.pool import Holder
from quire.kinds import counts
from quire.plan import bound
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.waiting import JUST_CAME, Waiting

NAMED_HOLDERS = 3
"""Requests named by kind, those that hold most first; the others are added up."""
NAMED_ENDS = 3


@dataclass(frozen=True, slots=True)
class KindShort:
    """One kind on one stage: what the request needs to start and stay, what is there, and who has the rest."""

    stage: int
    kind: str
    needs_pages: int
    free_pages: int
    """In sheets of this kind, and in those that are free."""
    awaited_pages: int
    """That running requests are likely to take still."""
    holders: tuple[tuple[str, int], ...]
    """(request, pages), the greatest first; `cache`, `pins` and `backend` for what these alone hold."""

    @property
    def short_pages(self) -> int:
        return max(0, self.needs_pages + self.awaited_pages - self.free_pages)


@dataclass(frozen=True, slots=True)
class Explanation:
    request: str
    status: str
    """waiting, loading, running"""
    reason: str
    kinds: tuple[KindShort, ...]
    steps: int = 0
    """At most so many steps are launched before the one that it runs in, whoever comes; 0 if it runs."""
    load_seconds: float = 0.0
    """And so many seconds pass at most while those before it wait for a tier."""
    after: tuple[str, ...] = ()
    """Who must have ended before there is room for it and for those before it in line."""

    def __str__(self) -> str:
        lines = [f"{self.request} {_VERBS[self.status]} {self.reason}"]
        for one in self.kinds:
            held = ", ".join(f"{name} holds {pages:,}" for name, pages in one.holders) or "nobody holds any"
            awaited = f" but running requests are likely to take {one.awaited_pages:,}" if one.awaited_pages else ""
            short = f", {one.short_pages:,} short" if one.short_pages else ""
            free = f"{one.free_pages:,} are free{awaited}{short}"
            lines.append(f"  {one.kind}: needs {one.needs_pages:,} pages, {free}: {held}")
        return "\n".join([*lines, self._when()] if self.status == "waiting" else lines)

    def _when(self) -> str:
        loads = f" and {self.load_seconds:g} s of loads" if self.load_seconds else ""
        soon = f"it runs in at most {self.steps:,} steps{loads}" if self.steps else "it runs in the next step"
        more = len(self.after) - NAMED_ENDS
        names = [*self.after[:NAMED_ENDS], *([f"{more:,} others"] if more > 0 else [])]
        ended = f"{' and '.join(names)} {'has' if len(names) == 1 else 'have'} ended"
        return f"there is room for it when {ended}; {soon}, whoever comes" if names else f"{soon}, whoever comes"


_VERBS = {"waiting": "waits because", "loading": "waits because", "running": "runs:"}


def explain(scheduler: Scheduler, name: str, overlap: int = 1) -> Explanation | None:
    """With so many steps in flight at most. None: no such request is waiting or running."""
    waiting = scheduler.queue.find(name)
    if waiting is not None:
        line = list(scheduler.queue.in_turn())
        ahead = line[: line.index(waiting)]
        reason = "; ".join(filter(None, (_reason(scheduler, waiting, ahead), waiting.way_back)))
        older = [one for one in (*scheduler.tickets.values(), *scheduler.queue) if one.arrival < waiting.arrival]
        return Explanation(
            name,
            "waiting",
            reason,
            _kinds(scheduler, waiting),
            overlap * _tokens_left(scheduler, older),
            sum(scheduler.loads.seconds_for(one.request.limit) for one in older),
            _until(scheduler, [*ahead, waiting]),
        )
    row = scheduler.rows.row_of.get(name)
    if row is None:
        return None
    state, ticket = scheduler.rows, scheduler.tickets[row]
    if state.is_loading[row]:
        return Explanation(name, "loading", f"a tier brings {int(state.computed[row]):,} of its tokens", ())
    done = f"{int(state.computed[row]):,} of {int(state.known[row]):,} known tokens computed"
    sent = f"preempted {ticket.preemptions} times"
    reason = "; ".join(filter(None, (f"{done}, {_found(ticket)}, {sent}", ticket.way_back)))
    return Explanation(name, "running", reason, ())


def _found(ticket: Waiting) -> str:
    here = f"{ticket.hit_tokens:,} tokens were reused" if ticket.hit_tokens else ""
    there = f"{ticket.loaded_tokens:,} tokens came from a tier" if ticket.loaded_tokens else ""
    return ", ".join(filter(None, (here, there))) or f"nothing was reused ({ticket.miss})"


def _reason(scheduler: Scheduler, waiting: Waiting, ahead: Sequence[Waiting]) -> str:
    """What holds now, or else what held in the last step."""
    if not scheduler.rows.has_room():
        return scheduler.why_full()
    if reason := scheduler.why_not_yet(waiting):
        return reason
    if waiting.reason == JUST_CAME and ahead:
        first = ahead[0]
        return f"it is number {len(ahead) + 1:,} in line: {first.request.name} waits because {first.reason}"
    return waiting.reason


def _kinds(scheduler: Scheduler, waiting: Waiting) -> tuple[KindShort, ...]:
    length = scheduler.likely_length(waiting)
    ahead, limit = counts(scheduler.plan.lookahead), counts(waiting.request.limit)
    rows, found = scheduler.order(), []
    likely, limits = scheduler.likely_lengths(rows), scheduler.rows.limit[rows]
    for stage, memory in enumerate(scheduler.memories):
        kinds = memory.stage.kinds
        own = bound.demand(kinds, counts(length - 1), counts(1), ahead, limit)
        others = bound.demand(kinds, likely - 1, counts(1), ahead, limits)
        for kind, (need, needs) in enumerate(zip(own, others, strict=True)):
            held = np.array([len(memory.tables[kind].held(row)) for row in rows.tolist()], dtype=np.int64)
            awaited = int(np.maximum(needs - held, 0).sum())
            found.append(_kind(scheduler, memory, stage, kind, int(need), awaited))
    return tuple(found)


def _kind(scheduler: Scheduler, memory: StageMemory, stage: int, kind: int, need: int, awaited: int) -> KindShort:
    shelf, table = memory.pool.shelves[kind], memory.tables[kind]
    free = shelf.free_pages + memory.pool.free_sheets * shelf.pages_per_sheet
    held = [(request.name, len(table.held(row))) for row, request in scheduler.rows.requests.items()]
    held = sorted((one for one in held if one[1]), key=lambda one: (-one[1], one[0]))
    others = sum(pages for _, pages in held[NAMED_HOLDERS:])
    named = [*held[:NAMED_HOLDERS], *([(f"{len(held) - NAMED_HOLDERS} others", others)] if others else [])]
    by_request = shelf.count(Holder.REQUEST) > 0
    for holder, name in ((Holder.CACHE, "cache"), (Holder.PIN, "pins"), (Holder.BACKEND, "backend")):
        alone = int(((shelf.count(holder) > 0) & ~by_request).sum())
        named += [(name, alone)] if alone else []
    return KindShort(stage, memory.stage.kinds[kind].name, need, free, awaited, tuple(named))


def _until(scheduler: Scheduler, newcomers: Sequence[Waiting]) -> tuple[str, ...]:
    """Running requests end in the order of what they have left: those that must have ended before there are rows and
    pages for the newcomers too, as long as they are likely to become. If that is not enough, newcomers end as well."""
    state = scheduler.rows
    rows = scheduler.order()
    rows = rows[np.argsort(state.limit[rows] - state.computed[rows], kind="stable")]
    likely = [scheduler.likely_length(one) for one in newcomers]
    limits = [one.request.limit for one in newcomers]

    def is_enough(ended: int) -> bool:
        stay = rows[ended:]
        lengths, limit = np.append(scheduler.likely_lengths(stay), likely), np.append(state.limit[stay], limits)
        return len(lengths) <= state.count and scheduler.room.can_hold(lengths, limit)

    ended = bisect.bisect_left(range(len(rows) + 1), True, key=is_enough)
    before = newcomers[:-1] if ended > len(rows) else ()
    return (*(state.requests[row].name for row in rows[:ended].tolist()), *(one.request.name for one in before))


def _tokens_left(scheduler: Scheduler, older: Sequence[Waiting]) -> int:
    """That these compute until all have ended, at most: all of them but those that the elder keeps."""
    if not older:
        return 0
    row = scheduler.rows.row_of.get(min(older, key=lambda one: one.arrival).request.name)
    is_kept = row is not None and not scheduler.rows.is_loading[row]
    return sum(one.request.limit for one in older) - (int(scheduler.rows.settled[row]) if is_kept else 0)
