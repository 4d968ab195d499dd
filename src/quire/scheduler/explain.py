"""Why a request waits, who holds what it lacks, and when it can run. A question: nothing changes by asking.

r7 waits because its pages and those that the running ones are likely to need exceed the pool
  full       needs 64 pages, 12 are free (0 sheets): r1 holds 120, r2 holds 64, the cache 30
it can run in at most 212 steps, when r2 has ended
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quire.cache.memory import StageMemory
from quire.cache.pool import Holder
from quire.kinds import counts
from quire.plan import bound
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.waiting import Waiting

NAMED_HOLDERS = 3
"""Requests named by kind, those that hold most first; the others are added up."""


@dataclass(frozen=True, slots=True)
class KindShort:
    """One kind on one stage: what the request needs to start and stay, what is there, and who has the rest."""

    stage: int
    kind: str
    needs_pages: int
    free_pages: int
    """In sheets of this kind, and in those that are free."""
    holders: tuple[tuple[str, int], ...]
    """(request, pages), the greatest first; `cache`, `pins` and `backend` for what these alone hold."""

    @property
    def short_pages(self) -> int:
        return max(0, self.needs_pages - self.free_pages)


@dataclass(frozen=True, slots=True)
class Explanation:
    request: str
    status: str
    """waiting, loading, running"""
    reason: str
    kinds: tuple[KindShort, ...]
    steps: int
    """At most so many steps until it runs; 0 if it does."""
    after: tuple[str, ...]
    """Who must have ended by then."""

    def __str__(self) -> str:
        lines = [f"{self.request} {_VERBS[self.status]} {self.reason}"]
        for one in self.kinds:
            held = ", ".join(f"{name} holds {pages:,}" for name, pages in one.holders) or "nobody holds any"
            short = f", {one.short_pages:,} short" if one.short_pages else ""
            lines.append(f"  {one.kind}: needs {one.needs_pages:,} pages, {one.free_pages:,} are free{short}: {held}")
        if self.status == "waiting":
            when = f", when {' and '.join(self.after)} {'has' if len(self.after) == 1 else 'have'} ended"
            lines.append(f"it can run in at most {self.steps:,} steps{when if self.after else ''}")
        return "\n".join(lines)


_VERBS = {"waiting": "waits because", "loading": "waits because", "running": "runs:"}


def explain(scheduler: Scheduler, name: str) -> Explanation | None:
    """None: no such request is waiting or running."""
    waiting = scheduler.queue.find(name)
    if waiting is not None:
        steps, after = _until(scheduler, waiting)
        reason = "; ".join(filter(None, (scheduler.why_not_yet(waiting) or waiting.reason, waiting.way_back)))
        return Explanation(name, "waiting", reason, _kinds(scheduler, waiting), steps, after)
    row = scheduler.rows.row_of.get(name)
    if row is None:
        return None
    state, ticket = scheduler.rows, scheduler.tickets[row]
    if state.is_loading[row]:
        return Explanation(name, "loading", f"a tier brings {int(state.computed[row]):,} of its tokens", (), 0, ())
    found = f"{ticket.hit_tokens:,} tokens were reused" if ticket.hit_tokens else f"nothing was reused ({ticket.miss})"
    done = f"{int(state.computed[row]):,} of {int(state.known[row]):,} known tokens computed"
    sent = f"preempted {ticket.preemptions} times"
    reason = "; ".join(filter(None, (f"{done}, {found}, {sent}", ticket.way_back)))
    return Explanation(name, "running", reason, (), 0, ())


def _kinds(scheduler: Scheduler, waiting: Waiting) -> tuple[KindShort, ...]:
    length = scheduler.likely_length(waiting)
    ahead, limit = counts(scheduler.plan.lookahead), counts(waiting.request.limit)
    found = []
    for stage, memory in enumerate(scheduler.memories):
        pages = bound.demand(memory.stage.kinds, counts(length - 1), counts(1), ahead, limit)
        for kind, need in enumerate(pages):
            found.append(_kind(scheduler, memory, stage, kind, int(need)))
    return tuple(found)


def _kind(scheduler: Scheduler, memory: StageMemory, stage: int, kind: int, need: int) -> KindShort:
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
    return KindShort(stage, memory.stage.kinds[kind].name, need, free, tuple(named))


def _until(scheduler: Scheduler, waiting: Waiting) -> tuple[int, tuple[str, ...]]:
    """Running requests end in the order of what they have left; when those that are left leave room, it runs.

    At the latest it runs when it is the elder: when everyone who came before has ended.
    """
    state = scheduler.rows
    rows = scheduler.order()
    left = state.limit[rows] - state.computed[rows]
    rows = rows[np.argsort(left, kind="stable")]
    for ended in range(len(rows) + 1):
        lengths = np.append(scheduler.likely_lengths(rows[ended:]), scheduler.likely_length(waiting))
        limit = np.append(state.limit[rows[ended:]], waiting.request.limit)
        if scheduler.room.can_hold(lengths, limit) and (ended or not scheduler.why_not_yet(waiting)):
            break
    gone = rows[:ended].tolist()
    ahead = sum(one.request.limit for one in scheduler.queue if one.arrival < waiting.arrival)
    return int(np.sort(left)[:ended].max(initial=0)) + ahead, tuple(state.requests[row].name for row in gone)
