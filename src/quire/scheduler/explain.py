"""Why a request waits, who holds what it lacks, and when it can run. A question: nothing changes by asking.

**The number of steps is a bound.** The elder gets a token in each step, or in each n-th where n are in flight, and
keeps what it has computed. Others may be preempted and begin again. So every older request has ended, and this one is
the elder itself and runs, after all the tokens of those before it, n steps for each. Loads from a tier that they wait
for come on top, by their deadlines. `core/sentences.py` makes English of the answer.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import numpy as np

from quire.cache.memory import StageMemory
from quire.cache.pool import Holder
from quire.core.reasons import QUEUED, Explanation, KindShort, Reason, Why
from quire.kinds import counts
from quire.plan import bound
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.waiting import Waiting

NAMED_HOLDERS = 3
"""Requests named by kind, those that hold most first; the others are added up."""


def explain(scheduler: Scheduler, name: str, overlap: int = 1) -> Explanation | None:
    """With so many steps in flight at most. None: no such request is waiting or running."""
    waiting = scheduler.queue.find(name)
    if waiting is not None:
        line = list(scheduler.queue.in_turn())
        ahead = line[: line.index(waiting)]
        older = [one for one in (*scheduler.tickets.values(), *scheduler.queue) if one.arrival < waiting.arrival]
        return Explanation(
            name,
            "waiting",
            _reason(scheduler, waiting, ahead),
            waiting.way_back,
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


def _reason(scheduler: Scheduler, waiting: Waiting, ahead: Sequence[Waiting]) -> Reason:
    """What holds now, or else what held in the last step."""
    if not scheduler.rows.has_room():
        return scheduler.why_full()
    if reason := scheduler.why_not_yet(waiting):
        return reason
    if waiting.reason == QUEUED and ahead:
        first = ahead[0]
        return Reason(Why.IN_LINE, (first.request.name,), {"place": len(ahead) + 1}, because=first.reason)
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
    rest = sum(pages for _, pages in held[NAMED_HOLDERS:])
    others = [(f"{len(held) - NAMED_HOLDERS} others", rest)] if rest else []
    by_request = shelf.count(Holder.REQUEST) > 0
    for holder, name in ((Holder.CACHE, "cache"), (Holder.PIN, "pins"), (Holder.BACKEND, "backend")):
        alone = int(((shelf.count(holder) > 0) & ~by_request).sum())
        others += [(name, alone)] if alone else []
    named = tuple(held[:NAMED_HOLDERS])
    return KindShort(stage, memory.stage.kinds[kind].name, need, free, awaited, named, tuple(others))


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
