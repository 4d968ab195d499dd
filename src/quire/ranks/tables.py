"""Tables of followers: copies of the scheduler's, kept equal by the changes that come with each step.

    scheduler's   · 41 42 43 ·        step 7 computes rows 3 and 9: the cells of these rows that differ from what was
    sent before   · 41 42  ·  ·       sent before travel with it, [column 3 = 43]
    follower's    · 41 42 43 ·

Only rows of the step are compared, and only as far as they reach: no other cell is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from quire.cache.tables import Table
from quire.core.step import Ints, Step, TableView
from quire.core.units import ceil_div
from quire.plan.plan import KindPlan, Plan

Tables = tuple[tuple[TableView, ...], ...]
"""By stage that keeps anything, by kind."""


class Change(NamedTuple):
    """Cells of one table with new addresses."""

    cells: Ints
    """row × columns of the table + column"""
    addresses: Ints
    """(cell, group)"""


NO_CHANGE = Change(np.empty(0, dtype=np.int64), np.empty((0, 1), dtype=np.int64))


def empty_tables(plan: Plan) -> Tables:
    """As a scheduler's before its first request."""
    none = np.empty(0, dtype=np.int32)
    stages = [stage for stage in plan.stages if stage.kinds]
    return tuple(tuple(Table(kind, plan, plan.max_requests, none).view for kind in stage.kinds) for stage in stages)


def apply(changes: Sequence[Change], tables: Tables) -> None:
    """Writes the changes of all tables, in the order of `Differences.take`."""
    for change, view in zip(changes, (view for stage in tables for view in stage), strict=True):
        if len(change.cells):
            row, column = np.divmod(change.cells, view.addresses.shape[2])
            view.addresses[row, :, column] = change.addresses


class Differences:
    """What the scheduler's tables have that was not sent yet."""

    def __init__(self, plan: Plan) -> None:
        self._kinds = [kind for stage in plan.stages for kind in stage.kinds]
        self._lookahead = plan.lookahead
        self._sent = empty_tables(plan)

    def take(self, step: Step) -> list[Change]:
        """Of the rows of a step, table after table. They count as sent."""
        rows, reach = step.rows, int(step.ends.max(initial=0)) + self._lookahead
        if step.loads:
            rows, reach = np.union1d(rows, [row for _, row in step.loads]), -1
        views = [view for stage in step.tables for view in stage]
        sent = [view for stage in self._sent for view in stage]
        changes = [_change(*one, rows, reach) for one in zip(self._kinds, views, sent, strict=True)]
        apply(changes, self._sent)
        return changes


def _change(kind: KindPlan, view: TableView, sent: TableView, rows: Ints, reach: int) -> Change:
    """`reach`: the greatest end of a row, in tokens; -1: not known."""
    width = view.addresses.shape[2]
    columns = min(width, ceil_div(reach, kind.page_tokens)) if kind.kind.grows and reach >= 0 else width
    now, before = (table.addresses[rows, :, :columns] for table in (view, sent))
    places = (now != before).any(axis=1).ravel().nonzero()[0]
    if not len(places):
        return NO_CHANGE
    entry, column = np.divmod(places, columns)
    return Change(rows[entry] * width + column, now[entry, :, column].astype(np.int64))
