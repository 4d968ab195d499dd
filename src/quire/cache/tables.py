"""Which pages each request holds: for every kind a row per request, written and read as arrays.

    row 7, kind window-1024, two groups          logical page l is in column l, wrapped round after the sinks
    columns   0   1   2   3   4   5   6   7
    group 0   ·   ·  41  42  43  44   ·   ·      held: [first, end) = [2, 6)
    group 1   ·   ·  91  92  93  94   ·   ·

A row is as wide as the kind's peak, so a window's row is short however long the request grows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from quire.cache.pool import Pages
from quire.core.step import TableView
from quire.kinds import Counts, Keeps, counts
from quire.plan.plan import KindPlan, Plan

Rows = npt.NDArray[np.int64]
Addresses = npt.NDArray[np.int32]
FEW_ROWS = 4
"""Up to this many rows are written one by one: slices and plain numbers are faster than index arrays."""


class Need(NamedTuple):
    """Rows that lack pages of one kind, and how many each lacks, all groups together. Other rows are left out."""

    rows: Rows
    pages: Counts

    def total(self) -> int:
        return sum(self.pages.tolist())

    def among(self, rows: Rows) -> Need:
        """What some of the rows lack."""
        chosen = np.isin(self.rows, rows)
        return Need(self.rows[chosen], self.pages[chosen])


NO_NEED = Need(np.empty(0, dtype=np.int64), counts(np.empty(0, dtype=np.int64)))


def join(needs: list[Need]) -> Need:
    """What several groups of rows lack, one group after another."""
    some = [need for need in needs if len(need.rows)]
    if len(some) < 2:
        return some[0] if some else NO_NEED
    return Need(np.concatenate([need.rows for need in some]), np.concatenate([need.pages for need in some]))


class Table:
    """Pages of one kind. A request's row keeps its number as long as the request runs."""

    def __init__(self, plan: KindPlan, limits: Plan, rows: int, addresses: Addresses) -> None:
        """`addresses`: the address of each page of this kind."""
        self.plan = plan
        self.kind = plan.kind
        self.sink_columns = plan.kind.sink_pages(plan.page_tokens)
        chunk = min(limits.batch_tokens, limits.max_length)
        peak = plan.kind.peak(limits.max_length, chunk, limits.lookahead, plan.page_tokens)
        self.width = max(1, peak) + self.sink_columns
        self._ring = self.width - self.sink_columns
        """Columns after those of the sinks; logical pages wrap round in them."""
        self.pages = np.zeros((rows, plan.groups, self.width), dtype=np.int64)
        self.view = TableView(np.zeros((rows, plan.groups, self.width), dtype=np.int32), self.sink_columns)
        """The same as addresses: what a runner reads."""
        self.on_write: Callable[..., None] = lambda _rows, _columns: None
        """Called with the rows and columns of cells that were written."""
        self._addresses = addresses
        self.first = np.zeros(rows, dtype=np.int64)
        self.end = np.zeros(rows, dtype=np.int64)
        self.kept = np.zeros(rows, dtype=np.int64)
        """Pages [0, kept) are held in addition to [first, end): sinks."""

    def column(self, logical: Counts) -> Counts:
        return self.view.column(logical)

    def write(self, rows: Rows | int, columns: Counts | list[int] | slice | int, pages: Pages) -> None:
        """Writes pages (entry, group), or with a slice (group, entry), into columns of rows."""
        self.pages[rows, :, columns] = pages
        self.view.addresses[rows, :, columns] = self._addresses[pages]
        self.on_write(rows, columns)

    def relocate(self, place: Pages) -> None:
        """Replaces each page p by place[p]."""
        pages = place[self.pages]
        rows, columns = (pages != self.pages).any(axis=1).nonzero()
        self.pages[:], self.view.addresses[:] = pages, self._addresses[pages]
        self.on_write(rows, columns)

    def missing(self, rows: Rows, end: Counts, ahead: Counts) -> Need:
        """Pages that rows lack for tokens up to `end`, the last `ahead` of them lookahead; frees nothing."""
        wanted = self.kind.end_page(end, ahead, self.plan.page_tokens)
        lacking = (wanted > self.end[rows]).nonzero()[0]
        if not len(lacking):
            return NO_NEED
        rows = rows[lacking]
        missing = wanted[lacking] - self.end[rows]
        return Need(rows, missing if self.plan.groups == 1 else self.plan.groups * missing)

    def append(self, rows: Rows, new: Counts, pages: Pages) -> None:
        """Appends `new[i]` new pages to rows[i], given group after group for each logical page."""
        if len(rows) == 1:
            self.append_one(rows.item(0), pages)
            return
        if len(rows) <= FEW_ROWS:
            taken = 0
            for row, number in zip(rows.tolist(), new.tolist(), strict=True):
                self.append_one(row, pages[taken : taken + number])
                taken += number
            return
        begin, new = self.end[rows], new // self.plan.groups
        self.end[rows] = begin + new
        owner = rows.repeat(new)
        logical = np.repeat(begin - (np.cumsum(new) - new), new) + np.arange(len(owner))
        self.write(owner, self.column(counts(logical)), pages.reshape(len(owner), self.plan.groups))

    def append_one(self, row: int, pages: Pages) -> None:
        """Appends new pages to a row, given group after group for each logical page."""
        groups, begin = self.plan.groups, self.end.item(row)
        self.end[row] = end = begin + len(pages) // groups
        columns = self._columns(begin, end)
        by_page = pages.reshape(-1, groups)
        self.write(row, columns, by_page.T if isinstance(columns, slice) else by_page)

    def _columns(self, begin: int, end: int) -> slice | Counts:
        """The columns of logical pages [begin, end)."""
        sinks = self.sink_columns
        first = sinks + (begin - sinks) % self._ring
        if begin >= sinks and first + end - begin <= self.width:
            return slice(first, first + end - begin)
        return self.column(np.arange(begin, end))

    def cut(self, rows: Rows, settled: Counts) -> Pages | None:
        """Removes the pages that left the live set of `settled` tokens and returns them; None: there are none. A page
        that several rows share appears once for each of them."""
        first = self.kind.first_page(settled, self.plan.page_tokens)
        moved = (first > self.first[rows]).nonzero()[0]
        if not len(moved):
            return None
        if len(moved) <= FEW_ROWS and not self.sink_columns:
            each = zip(rows[moved].tolist(), first[moved].tolist(), strict=True)
            parts = [self._cut_one(row, page) for row, page in each]
            return parts[0] if len(parts) == 1 else np.concatenate(parts)
        rows = rows[moved]
        first = np.minimum(first[moved], self.end[rows])
        kept = np.minimum(self.kind.kept_pages(settled[moved], self.plan.page_tokens), first)
        kept = np.maximum(self.kept[rows], kept)
        begin = np.maximum(self.first[rows], kept)
        pages = self._read(rows, begin, np.maximum(first - begin, 0))
        self.kept[rows], self.first[rows] = kept, first
        return pages

    def _cut_one(self, row: int, first: int) -> Pages:
        begin, first = self.first.item(row), min(first, self.end.item(row))
        self.first[row] = first
        return self._in(row, self._columns(begin, first))

    def _in(self, row: int, columns: slice | Counts) -> Pages:
        """Pages in some columns of a row, group after group for each; may be a view: use it before writing the row."""
        pages: Pages = self.pages[row, 0, columns] if self.plan.groups == 1 else self.pages[row][:, columns].T.ravel()
        return pages

    def exchange(self, row: int, column: int) -> None:
        """Swaps columns 0 and `column` of a row."""
        self.write(row, [column, 0], self.pages[row][:, [0, column]].T)

    def held(self, row: int) -> Pages:
        """All pages of a row, group after group for each logical page."""
        columns = self._columns(self.first.item(row), self.end.item(row))
        if self.kept[row]:
            columns = np.append(np.arange(self.kept[row]), self.column(np.arange(self.first[row], self.end[row])))
        return self._in(row, columns)

    def clear(self, row: int) -> Pages:
        pages = self.held(row)
        self.first[row] = self.end[row] = self.kept[row] = 0
        return pages

    def runs(self, row: int, begin: int, end: int) -> list[range]:
        """Which of a row's logical pages [begin, end) it holds."""
        kept, first = self.kept.item(row), self.first.item(row)
        runs = range(begin, min(kept, end)), range(max(first, kept, begin), min(self.end.item(row), end))
        return [run for run in runs if run]

    def at(self, row: int, begin: int, end: int) -> Pages:
        """Logical pages [begin, end) of a row: (page, group)."""
        return np.asarray(self.pages[row][:, self._columns(begin, end)].T, dtype=np.int64)

    def adopt(self, row: int, boundary: int, logical: npt.NDArray[np.int64]) -> Pages:
        """Starts a row at `boundary` with cached pages (page, group), and returns those that the row now holds."""
        settled = np.asarray(boundary)
        first = int(self.kind.first_page(settled, self.plan.page_tokens))
        kept = int(self.kind.kept_pages(settled, self.plan.page_tokens))
        wanted = np.concatenate([np.arange(kept), np.arange(first, len(logical))])
        self.write(np.full(len(wanted), row), self.column(wanted), logical[wanted])
        self.first[row], self.end[row], self.kept[row] = first, len(logical), kept
        return np.asarray(logical[wanted].ravel(), dtype=np.int64)

    def lacks(self, row: int, boundary: int) -> tuple[int, int]:
        """Pages of one group that a row lacks to hold the live set of `boundary` settled tokens: (sinks, the run).

        A kind that grows continues after the pages that the row already shares; others start from nothing.
        """
        settled, page_tokens = np.asarray(boundary), self.plan.page_tokens
        if self.kind.keeps is not Keeps.TAIL:
            return 0, int(self.kind.end_page(settled, counts(0), page_tokens)) - self.end.item(row)
        first = int(self.kind.first_page(settled, page_tokens))
        return int(self.kind.kept_pages(settled, page_tokens)), -(-boundary // page_tokens) - first

    def begin_at(self, row: int, boundary: int, pages: Pages) -> None:
        """Gives a row the pages that it lacks; its pages of kinds that do not grow were freed before."""
        sinks, run = self.lacks(row, boundary)
        split = sinks * self.plan.groups
        self.append_one(row, pages[:split])
        if self.kind.keeps is Keeps.TAIL:
            self.kept[row] = sinks
            self.first[row] = self.end[row] = int(self.kind.first_page(np.asarray(boundary), self.plan.page_tokens))
        assert len(pages) - split == run * self.plan.groups
        self.append_one(row, pages[split:])

    def _read(self, rows: Rows, begin: Counts, number: Counts) -> Pages:
        owner = np.repeat(rows, number)
        start = np.repeat(begin - (np.cumsum(number) - number), number)
        columns = self.column(start + np.arange(len(owner)))
        return np.asarray(self.pages[owner, :, columns].ravel(), dtype=np.int64)
