"""Running and waiting requests as columns: tokens, bytes that they hold, why they wait and for how long at most."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import numpy as np

from quire.core.reasons import Reason
from quire.engine.engine import Engine
from quire.inspect.views import COMPUTING, GENERATING, LOADING, WAITING, Column, RequestsView
from quire.scheduler.queue import Ticket
from quire.scheduler.rows import Ints
from quire.scheduler.scheduler import Scheduler

MOST_REQUESTS = 2000
_OF_TICKETS = ("hit_tokens", "loaded_tokens", "preemptions")
_numbers = attrgetter(*_OF_TICKETS)


def requests_of(engine: Engine) -> RequestsView:
    scheduler = engine.scheduler
    rows = np.array(sorted(scheduler.rows.requests), dtype=np.int64)[:MOST_REQUESTS]
    line = list(scheduler.queue.in_turn())[: MOST_REQUESTS - len(rows)]
    codes, reasons = _reasons(line)
    both = [*(scheduler.rows.requests[row] for row in rows.tolist()), *(one.request for one in line)]
    return RequestsView(
        running=len(scheduler.running),
        waiting=len(scheduler.queue),
        names=tuple(one.name for one in both),
        client_ids=tuple(one.client_id for one in both),
        tenants=tuple(one.tenant for one in both),
        steps=np.concatenate([np.zeros_like(rows), _most_steps(engine, line)]),
        reason=np.concatenate([np.full(len(rows), len(reasons)), codes]),
        reasons=reasons,
        **_tokens(scheduler, rows, line),
    )


def _tokens(scheduler: Scheduler, rows: Ints, line: Sequence[Ticket]) -> dict[str, Column]:
    state, tickets = scheduler.rows, [scheduler.running.tickets[row] for row in rows.tolist()]
    is_behind = state.computed[rows] < np.maximum(state.prompt[rows], state.known[rows] - 1)
    running = {
        "state": np.where(state.is_loading[rows], LOADING, np.where(is_behind, COMPUTING, GENERATING)),
        "prompt": state.prompt[rows],
        "known": state.known[rows],
        "computed": np.where(state.is_loading[rows], 0, state.computed[rows]),
        "likely": scheduler.admission.likely_lengths(rows),
        "limit": state.limit[rows],
        "size_bytes": _held_bytes(scheduler, rows),
    }
    none = [0] * len(line)
    waiting = {
        "state": [WAITING] * len(line),
        "prompt": [len(one.request.prompt) for one in line],
        "known": [one.known for one in line],
        "computed": none,
        "likely": none,
        "limit": [one.request.limit for one in line],
        "size_bytes": none,
    }
    joined = {
        name: np.concatenate([column, np.array(waiting[name], dtype=np.int64)]) for name, column in running.items()
    }
    each = np.array([*map(_numbers, tickets), *((0, 0, one.preemptions) for one in line)], dtype=np.int64)
    found, loaded, preemptions = each.reshape(-1, len(_OF_TICKETS)).T
    return {**joined, "found": found, "loaded": loaded, "preemptions": preemptions}


def _held_bytes(scheduler: Scheduler, rows: Ints) -> Column:
    """Of the pages in each row of the tables: its first pages that are kept, and those from the first live one on."""
    total = np.zeros(len(rows), dtype=np.int64)
    for memory in scheduler.memories:
        for table in memory.tables:
            pages = table.plan.groups * (table.end[rows] - table.first[rows] + table.kept[rows])
            total += pages * table.plan.page_bytes
    return total


def _reasons(line: Sequence[Ticket]) -> tuple[Column, tuple[Reason, ...]]:
    """The place of each request's reason among the different ones."""
    found: dict[tuple[object, ...], int] = {}
    reasons: list[Reason] = []
    places = np.zeros(len(line), dtype=np.int64)
    for number, ticket in enumerate(line):
        reason = ticket.reason
        key = (reason.code, reason.requests, *reason.numbers.items(), id(reason.because), reason.detail)
        if key not in found:
            found[key] = len(reasons)
            reasons.append(reason)
        places[number] = found[key]
    return places, tuple(reasons)


def _most_steps(engine: Engine, line: Sequence[Ticket]) -> Column:
    """As `explain.request` bounds them, for the whole line at once: all tokens of older requests, except those that the
    oldest of all keeps, times the steps in flight."""
    if not line:
        return np.zeros(0, dtype=np.int64)
    scheduler = engine.scheduler
    everyone = sorted((*scheduler.running.tickets.values(), *scheduler.queue), key=lambda one: one.arrival)
    limits = np.array([one.request.limit for one in everyone], dtype=np.int64)
    before = np.concatenate([[0], np.cumsum(limits)])
    row = scheduler.rows.row_of.get(everyone[0].request.name)
    if row is not None and not scheduler.rows.is_loading[row]:
        before[1:] -= scheduler.rows.settled[row]
    place = {one.arrival: number for number, one in enumerate(everyone)}
    return np.array([engine.overlap * before[place[one.arrival]] for one in line], dtype=np.int64)
