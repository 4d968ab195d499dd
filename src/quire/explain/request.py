"""Why a request waits, what holds the pages that it lacks, and when it can run. Changes nothing.

**The number of steps is a bound.** The elder gets a token in each step, or in each n-th if n are in flight, and keeps
what it has computed. Others may be preempted and begin again. So after n steps for each token of the older requests,
all of them have ended, and this request is the elder and runs. Loads from a tier that they wait for are added, by their
deadlines. `explain/sentences.py` renders the answer in English.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import numpy as np

from quire.cache.memory import StageMemory
from quire.cache.pool import Holder
from quire.core.reasons import QUEUED, Reason, Why
from quire.engine.engine import Engine
from quire.explain.explanation import Explanation, KindShort
from quire.kinds import counts
from quire.plan import bound
from quire.prefix.lease_pages import leased_pages
from quire.scheduler.queue import Ticket
from quire.scheduler.scheduler import Scheduler

NAMED_HOLDERS = 3
"""Requests named for each kind, those that hold most first; the others are added up."""


def explain(engine: Engine, name: str) -> Explanation | None:
    """None: no such request is waiting or running. What happened to it is in `engine.history`."""
    scheduler, overlap = engine.scheduler, engine.overlap
    ticket = scheduler.queue.find(name)
    if ticket is not None:
        line = list(scheduler.queue.in_turn())
        ahead = line[: line.index(ticket)]
        older = [one for one in (*scheduler.running.tickets.values(), *scheduler.queue) if one.arrival < ticket.arrival]
        return Explanation(
            name,
            "waiting",
            _reason(scheduler, ticket, ahead),
            ticket.way_back,
            _kinds(scheduler, ticket),
            overlap * tokens_left(scheduler, older),
            sum(scheduler.loads.seconds_for(one.request.limit) for one in older),
            _until(scheduler, [*ahead, ticket]),
            scheduler.reuse.index.awaited.share(ticket.awaits),
        )
    row = scheduler.rows.row_of.get(name)
    if row is None:
        return None
    state, ticket = scheduler.rows, scheduler.running.tickets[row]
    if state.is_loading[row]:
        loading = Reason(Why.LOADING, numbers={"tokens": state.computed.item(row)})
        return Explanation(name, "loading", loading)
    numbers = {
        "computed": state.computed.item(row),
        "known": state.known.item(row),
        "hit_tokens": ticket.hit_tokens,
        "loaded_tokens": ticket.loaded_tokens,
        "preemptions": ticket.preemptions,
    }
    miss = None if ticket.miss is None else Reason(ticket.miss)
    return Explanation(name, "running", Reason(Why.RUNNING, numbers=numbers, because=miss), ticket.way_back)


def _reason(scheduler: Scheduler, ticket: Ticket, ahead: Sequence[Ticket]) -> Reason:
    """The reason that applies now, or else the last one that a step gave it."""
    if not scheduler.rows.has_room():
        return scheduler.admission.why_full(QUEUED)
    if reason := scheduler.admission.why_not_yet(ticket):
        return reason
    if ticket.reason.code is Why.MEMORY:  # it has become free since, and steps had no tokens left
        return scheduler.admission.why_full(QUEUED)
    if ticket.reason == QUEUED and ahead:
        first = ahead[0]
        return Reason(Why.IN_LINE, (first.request.name,), {"place": len(ahead) + 1}, because=first.reason)
    return ticket.reason


def _kinds(scheduler: Scheduler, ticket: Ticket) -> tuple[KindShort, ...]:
    length = scheduler.admission.likely_length(ticket)
    ahead, limit = counts(scheduler.plan.lookahead), counts(ticket.request.limit)
    rows, found = scheduler.running.order(), []
    likely, limits = scheduler.admission.likely_lengths(rows), scheduler.rows.limit[rows]
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
    rest = sum(pages for _, pages in held[NAMED_HOLDERS:])
    more = len(held) - NAMED_HOLDERS
    others = [(f"{more:,} others" if more > 1 else "1 other", rest)] if rest else []
    by_request = shelf.count(Holder.REQUEST) > 0
    for holder, name in ((Holder.CACHE, "cache"), (Holder.PIN, "pins"), (Holder.BACKEND, "backend")):
        alone = int(((shelf.count(holder) > 0) & ~by_request).sum())
        others += [(name, alone)] if alone else []
    named = tuple(held[:NAMED_HOLDERS])
    leased = np.unique(leased_pages(memory, kind, scheduler.reuse.index.nodes))
    evictable = (shelf.count(Holder.CACHE) > 0) & ~by_request
    evictable[leased] = False
    name, spare = memory.stage.kinds[kind].name, int(evictable.sum())
    return KindShort(stage, name, need, free, awaited, named, tuple(others), spare)


def _until(scheduler: Scheduler, newcomers: Sequence[Ticket]) -> tuple[str, ...]:
    """Requests that must have ended before there are rows and pages for the newcomers at their likely lengths. Running
    requests are assumed to end in the order of their remaining tokens; if that is not enough, newcomers end as well."""
    state = scheduler.rows
    rows = scheduler.running.order()
    rows = rows[np.argsort(state.limit[rows] - state.computed[rows], kind="stable")]
    likely = [scheduler.admission.likely_length(one) for one in newcomers]
    limits = [one.request.limit for one in newcomers]

    def is_enough(ended: int) -> bool:
        stay = rows[ended:]
        lengths, limit = (
            np.append(scheduler.admission.likely_lengths(stay), likely),
            np.append(state.limit[stay], limits),
        )
        return len(lengths) <= state.count and scheduler.room.can_hold(lengths, limit)

    ended = bisect.bisect_left(range(len(rows) + 1), True, key=is_enough)
    before = newcomers[:-1] if ended > len(rows) else ()
    return (*(state.requests[row].name for row in rows[:ended].tolist()), *(one.request.name for one in before))


def tokens_left(scheduler: Scheduler, older: Sequence[Ticket]) -> int:
    """The most tokens that these compute until all have ended: all of theirs, except those that the elder keeps."""
    if not older:
        return 0
    row = scheduler.rows.row_of.get(min(older, key=lambda one: one.arrival).request.name)
    is_kept = row is not None and not scheduler.rows.is_loading[row]
    return sum(one.request.limit for one in older) - (int(scheduler.rows.settled[row]) if is_kept else 0)
