"""A stage's memory: pool and tables. The pages of a request follow from its settled tokens and those in flight."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from quire.cache.pool import BY_REQUESTS, NOT_CACHED, Holder, Pages, Pool
from quire.cache.tables import Need, Rows, Table
from quire.kinds import Counts, Keeps
from quire.plan.plan import Plan, StagePlan

Chain = npt.NDArray[np.int64]
"""Nodes of the prefix index (`prefix/nodes.py`), by number."""
FIRST_NODES = 64
"""Initial capacity in nodes; it doubles when it is full."""


class KeptUnits:
    """Pages of one kind that the prefix index keeps: for each node the pages of its unit, and which are present."""

    def __init__(self, pages_per_unit: int, groups: int) -> None:
        self.each = pages_per_unit
        self.pages = np.zeros((FIRST_NODES, pages_per_unit, groups), dtype=np.int64)
        self.present = np.zeros((FIRST_NODES, pages_per_unit), dtype=bool)

    def widen(self) -> None:
        self.pages = np.concatenate([self.pages, np.zeros_like(self.pages)])
        self.present = np.concatenate([self.present, np.zeros_like(self.present)])

    def slots(self, chain: Chain) -> Chain:
        """Indices of the pages of a chain's units in the arrays flattened over nodes and pages."""
        if self.each == 1:
            return chain
        return (self.each * chain[:, None] + np.arange(self.each)).ravel()

    def put(self, slots: Chain, pages: Pages) -> None:
        """Keeps `pages` (page, group) in these slots."""
        self.pages.reshape(-1, self.pages.shape[2])[slots] = pages
        self.present.reshape(-1)[slots] = True

    def let_go(self, chain: Chain) -> Pages:
        """Removes all pages of these nodes and returns them."""
        slots, present = self.slots(chain), self.present.reshape(-1)
        is_there = present[slots]
        if np.count_nonzero(is_there) < len(slots):
            slots = slots[is_there]
        present[slots] = False
        return self.pages.reshape(-1, self.pages.shape[2]).take(slots, axis=0).ravel()


class StageMemory:
    """Checks whether rows can grow, allocates their pages, and frees pages that they no longer need."""

    def __init__(self, stage: StagePlan, plan: Plan, rows: int) -> None:
        self.stage = stage
        self.pool = Pool(stage, plan.reserved_pages)
        pages = [np.arange(stage.sheets * kind.pages_per_sheet) for kind in stage.kinds]
        self.tables = [
            Table(kind, plan, rows, stage.addresses(index, pages[index])) for index, kind in enumerate(stage.kinds)
        ]
        self._lookahead = plan.lookahead
        self.kept: list[KeptUnits] = []
        """By kind; empty if prefixes are not reused."""

    def keep_units(self, unit: int) -> None:
        """The cache will keep pages by units of `unit` tokens; of a recurrent state one page, whatever the unit."""
        spans = [unit if table.kind.keeps is Keeps.STATE else table.plan.page_tokens for table in self.tables]
        self.kept = [KeptUnits(unit // span, t.plan.groups) for t, span in zip(self.tables, spans, strict=True)]

    def widen(self) -> None:
        """Doubles the capacity in nodes."""
        for kept in self.kept:
            kept.widen()

    def keep(self, kinds: Sequence[int], row: int, chain: Chain, first_unit: int, end: int) -> None:
        """The cache also holds a row's pages of these units, up to token `end`, except pages that nodes have."""
        for kind in kinds:
            table, kept = self.tables[kind], self.kept[kind]
            begin, slots = first_unit * kept.each, kept.slots(chain)
            for run in table.runs(row, begin, min(begin + len(slots), -(-end // table.plan.page_tokens))):
                own, pages = slots[run.start - begin : run.stop - begin], table.at(row, run.start, run.stop)
                is_there = kept.present.reshape(-1)[own]
                if np.count_nonzero(is_there):
                    own, pages = own[~is_there], pages[~is_there]
                kept.put(own, pages)
                self.pool.hold(kind, pages.ravel(), Holder.CACHE)

    def keep_new(self, kinds: Sequence[int], row: int, chain: Chain, first_unit: int) -> None:
        """The same for whole units of kinds that grow, if the row holds all their pages and their nodes have none."""
        for kind in kinds:
            kept = self.kept[kind]
            begin, slots = first_unit * kept.each, kept.slots(chain)
            pages = self.tables[kind].pages[row, :, begin : begin + len(slots)]
            kept.put(slots, pages.T)
            self.pool.hold(kind, pages.ravel(), Holder.CACHE)

    def forget(self, chain: Chain, kinds: Sequence[int]) -> None:
        """Removes the pages of these kinds from the nodes."""
        for kind in kinds:
            self.pool.drop_all(kind, self.kept[kind].let_go(chain), Holder.CACHE)

    def gives_back(self, node: int) -> bool:
        """Whether evicting a node would free a page: one that only the cache holds."""
        for shelf, kept in zip(self.pool.shelves, self.kept, strict=True):
            pages = kept.pages[node][kept.present[node]].ravel()
            if any(not word & NOT_CACHED for word in shelf.holders[pages].tolist()):
                return True
        return False

    def held_by_requests(self, kind: int, chain: Chain) -> int:
        """How many of a chain's pages of one kind are also held by running requests."""
        if not len(chain):
            return 0
        kept = self.kept[kind]
        pages = kept.pages[chain][kept.present[chain]].ravel()
        return int(np.count_nonzero(self.pool.shelves[kind].holders[pages] & BY_REQUESTS))

    def attach_state(self, kind: int, node: int, pages: Pages) -> None:
        """Makes captured pages the checkpoint of a node, unless it has one, and removes their pin."""
        kept = self.kept[kind]
        if not kept.present[node, 0]:
            kept.pages[node, 0], kept.present[node, 0] = pages, True
            self.pool.hold(kind, pages, Holder.CACHE)
        self.pool.drop(kind, pages, Holder.PIN)

    def move_states(self, row: int, drafts: int) -> None:
        """After `drafts` accepted drafts, the state after the last of them becomes the row's own."""
        for table in self.tables:
            if table.kind.keeps is Keeps.STATE:
                table.exchange(row, drafts)

    def adopt(self, row: int, boundary: int, chain: Chain) -> None:
        """Starts a row at `boundary` with the pages that its live set needs there, shared with the cache."""
        for kind, (table, kept) in enumerate(zip(self.tables, self.kept, strict=True)):
            if table.kind.keeps is Keeps.STATE:
                logical = kept.pages[chain[-1]]
            else:
                logical = kept.pages[chain].reshape(-1, table.plan.groups)[: -(-boundary // table.plan.page_tokens)]
            self.pool.hold(kind, table.adopt(row, boundary, logical), Holder.REQUEST)

    def written_on(self, boundary: int) -> list[int]:
        """Kinds whose last page a row that starts at `boundary` writes to: the row needs a page of its own there."""
        return [
            kind
            for kind, table in enumerate(self.tables)
            if table.kind.keeps is Keeps.STATE or boundary % table.plan.page_tokens
        ]

    def copied_at(self, boundary: int) -> list[int]:
        """For each kind: pages that such a row copies."""
        own = self.written_on(boundary)
        return [table.plan.groups * (kind in own) for kind, table in enumerate(self.tables)]

    def part(self, kind: int, row: int, boundary: int) -> tuple[Pages, Pages]:
        """Replaces the page that a row shares and writes to after `boundary` by a copy. The caller has made room."""
        table = self.tables[kind]
        page = 0 if table.kind.keeps is Keeps.STATE else boundary // table.plan.page_tokens
        column = int(table.column(np.asarray(page)))
        source = np.asarray(table.pages[row, :, column].copy(), dtype=np.int64)
        target = self.pool.take(kind, len(source))
        table.write(row, column, target)
        self.pool.drop(kind, source, Holder.REQUEST)
        return source, target

    def can_take_over(self, kinds: Sequence[int], row: int) -> bool:
        """Whether only the cache shares the row's last pages of these kinds."""
        return not any(self.pool.is_shared(kind, self._last(kind, row)) for kind in kinds)

    def take_over(self, kinds: Sequence[int], row: int, node: int) -> None:
        """Makes these pages the row's own by removing them from the cache."""
        for kind in kinds:
            pages, kept = self._last(kind, row), self.kept[kind]
            kept.present[node] &= ~np.isin(kept.pages[node], pages).any(axis=1)
            self.pool.drop(kind, pages, Holder.CACHE)

    def _last(self, kind: int, row: int) -> Pages:
        table = self.tables[kind]
        return np.asarray(table.pages[row, :, int(table.column(table.end[row] - 1))].copy(), dtype=np.int64)

    def needs(self, rows: Rows, settled: Counts, new: Counts, ahead: Counts) -> list[Need]:
        """For each kind: pages that rows need in addition to those they hold."""
        end = settled + new + ahead if self._lookahead else settled + new
        return [table.missing(rows, end, ahead) for table in self.tables]

    def fitting(self, rows: Rows, needs: Sequence[Need]) -> int:
        """How many of the rows, from the first on, can get all the pages that they need together."""
        lacking = {row for need in needs for row in need.rows.tolist()}
        if len(lacking) < 2 and self.pool.sheets_short([need.total() for need in needs]):
            return int((rows == lacking.pop()).nonzero()[0][0])
        sheets, pages = np.zeros(len(rows), dtype=np.int64), np.zeros(len(self.tables[0].end), dtype=np.int64)
        for shelf, need in zip(self.pool.shelves, needs, strict=True):
            pages[need.rows] = need.pages
            over = pages[rows].cumsum() - shelf.free_pages
            sheets -= -np.maximum(over, 0) // shelf.pages_per_sheet
            pages[need.rows] = 0
        return int(sheets.searchsorted(self.pool.free_sheets, side="right"))

    def grow(self, needs: Sequence[Need]) -> list[tuple[int, Pages]]:
        """Allocates the pages in `needs`; the caller has called `fitting`. Returns recurrent states to be zeroed."""
        fresh = []
        for index, (table, need) in enumerate(zip(self.tables, needs, strict=True)):
            if not len(need.rows):
                continue
            pages = self.pool.take(index, need.total())
            table.append(need.rows, need.pages, pages)
            if table.kind.keeps is Keeps.STATE:
                fresh.append((index, pages))
        return fresh

    def keep_growing(self, row: int) -> None:
        """Frees a row's pages of kinds that do not grow: a load replaces them by those of another boundary."""
        for index, table in enumerate(self.tables):
            if not table.kind.grows:
                self.pool.drop(index, table.clear(row), Holder.REQUEST)

    def lacks(self, row: int, boundary: int) -> list[int]:
        """For each kind: pages that a row needs in addition to continue at `boundary`, all groups together."""
        return [sum(table.lacks(row, boundary)) * table.plan.groups for table in self.tables]

    def begin_at(self, row: int, boundary: int) -> None:
        """Allocates these pages; the caller has made sure that there is room."""
        for index, (table, need) in enumerate(zip(self.tables, self.lacks(row, boundary), strict=True)):
            table.begin_at(row, boundary, self.pool.take(index, need))

    def settle(self, rows: Rows, settled: Counts) -> None:
        """Frees the pages that no later token reads."""
        for index, table in enumerate(self.tables):
            if not table.kind.grows and (pages := table.cut(rows, settled)) is not None:
                self.pool.drop_all(index, pages, Holder.REQUEST)

    def addresses(self, kind: int, row: int) -> npt.NDArray[np.int32]:
        """Addresses of a row's pages of one kind, in granules of 256 bytes: (group, column), as kernels read them."""
        return np.asarray(self.tables[kind].view.addresses[row], dtype=np.int32)

    def release(self, row: int) -> None:
        """Frees all pages of a row."""
        for index, table in enumerate(self.tables):
            self.pool.drop(index, table.clear(row), Holder.REQUEST)
