"""Tables of followers: copies of the scheduler's, kept equal by the changes that come with each step.

scheduler's   · 41 42 43 ·       the cell of 43 was written since the step before: it travels with the next one
follower's    · 41 42 43 ·
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from quire.cache.tables import Table
from quire.core.step import Ints, TableView
from quire.plan.plan import Plan

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
    """Writes the changes of all tables, one for each."""
    for change, view in zip(changes, (view for stage in tables for view in stage), strict=True):
        if len(change.cells):
            row, column = np.divmod(change.cells, view.addresses.shape[2])
            view.addresses[row, :, column] = change.addresses


class TableLog:
    """Which cells of a table were written since they were last taken."""

    def __init__(self, table: Table) -> None:
        self._view, self._cells = table.view, [np.empty(0, dtype=np.int64)]
        table.on_write = self._note

    def _note(self, rows: Ints | int, columns: Ints | list[int] | slice | int) -> None:
        if isinstance(columns, slice):
            columns = np.arange(columns.start, columns.stop)
        self._cells.append(np.ravel(np.asarray(rows) * self._view.addresses.shape[2] + np.asarray(columns)))

    def take(self) -> Change:
        """With what they hold now."""
        if len(self._cells) == 1:
            return NO_CHANGE
        cells, self._cells = np.unique(np.concatenate(self._cells)), self._cells[:1]
        row, column = np.divmod(cells, self._view.addresses.shape[2])
        return Change(cells, self._view.addresses[row, :, column].astype(np.int64))
