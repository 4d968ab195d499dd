"""A stage's memory: pool and tables. What a request holds follows from what it has settled and has in flight."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from quire.cache.pool import Holder, Pool
from quire.cache.tables import Rows, Table
from quire.kinds import Counts
from quire.plan.plan import Plan, StagePlan

FIRST_NODES = 64
"""Nodes that there is room for at first; it doubles."""


class KeptUnits:
    """Pages of one kind that the prefix index keeps: for each node the pages of its unit, and which are there."""

    def __init__(self, pages_per_unit: int, groups: int) -> None:
        self.pages = np.zeros((FIRST_NODES, pages_per_unit, groups), dtype=np.int64)
        self.present = np.zeros((FIRST_NODES, pages_per_unit), dtype=bool)

    def widen(self) -> None:
        self.pages = np.concatenate([self.pages, np.zeros_like(self.pages)])
        self.present = np.concatenate([self.present, np.zeros_like(self.present)])


class StageMemory:
    """Answers whether rows can grow, grows them, and takes back what left their live sets."""

    def __init__(self, stage: StagePlan, plan: Plan, rows: int) -> None:
        self.stage = stage
        self.pool = Pool(stage, plan.reserved_pages)
        self.tables = [Table(k, rows, plan.max_length, plan.batch_tokens, plan.lookahead) for k in stage.kinds]
        self.kept: list[KeptUnits] = []
        """By kind; empty while nothing is reused."""

    def keep_units(self, unit: int) -> None:
        self.kept = [KeptUnits(unit // table.plan.page_tokens, table.plan.groups) for table in self.tables]

    def widen(self) -> None:
        """Room for twice as many nodes."""
        for kept in self.kept:
            kept.widen()

    def keep(self, kinds: Sequence[int], rows: Rows, nodes: Rows, units: Counts, unit_tokens: int) -> int:
        """The cache holds the rows' pages of these units too, unless their nodes have them already.

        Nodes differ. Returns how many pages were added.
        """
        added = 0
        for kind in kinds:
            pages, held = self.tables[kind].unit_pages(rows, units, unit_tokens)
            kept = self.kept[kind]
            which, page = np.nonzero(held & ~kept.present[nodes])
            if len(which):
                kept.pages[nodes[which], page] = pages[which, page]
                kept.present[nodes[which], page] = True
                self.pool.hold(kind, np.asarray(pages[which, page].ravel()), Holder.CACHE)
                added += len(which)
        return added

    def forget(self, node: int, kinds: Sequence[int]) -> None:
        """Drops what a node keeps of some kinds."""
        for kind in kinds:
            kept = self.kept[kind]
            if kept.present[node].any():
                pages = kept.pages[node][kept.present[node]].ravel()
                kept.present[node] = False
                self.pool.drop(kind, pages, Holder.CACHE)

    def gives_back(self, node: int) -> bool:
        """Whether forgetting a node would free a page: one that the cache alone holds."""
        for shelf, kept in zip(self.pool.shelves, self.kept, strict=True):
            pages = kept.pages[node][kept.present[node]].ravel()
            if len(pages) and not (shelf.holds[Holder.REQUEST, pages] + shelf.holds[Holder.PIN, pages]).all():
                return True
        return False

    def needs(self, rows: Rows, settled: Counts, new: Counts, ahead: Counts) -> list[Counts]:
        """For each kind: pages that each row lacks for its demand, all groups together."""
        return [table.plan.groups * table.missing(rows, settled, new, ahead) for table in self.tables]

    def fitting(self, needs: Sequence[Counts]) -> int:
        """How many rows, from the first on, can take all their needs together."""
        if not needs or not len(needs[0]):
            return len(needs[0]) if needs else 0
        wanted = np.zeros(len(needs[0]), dtype=np.int64)
        for shelf, need in zip(self.pool.shelves, needs, strict=True):
            over = np.maximum(0, np.cumsum(need) - shelf.free_pages)
            wanted -= -over // shelf.pages_per_sheet
        return int(np.searchsorted(wanted, self.pool.free_sheets, side="right"))

    def grow(self, rows: Rows, needs: Sequence[Counts]) -> None:
        """Takes the pages that `needs` says; the caller has asked `fitting`."""
        for index, (table, need) in enumerate(zip(self.tables, needs, strict=True)):
            growing = np.flatnonzero(need)
            if len(growing):
                counts = need[growing] // table.plan.groups
                pages = self.pool.take(index, int(need[growing].sum()))
                table.append(rows[growing], counts, pages)

    def settle(self, rows: Rows, settled: Counts) -> None:
        """Gives back the pages that no later token reads any more."""
        for index, table in enumerate(self.tables):
            if not table.kind.grows:
                self.pool.drop(index, table.cut(rows, settled), Holder.REQUEST)

    def addresses(self, kind: int, row: int) -> npt.NDArray[np.int32]:
        """Where a row's pages of one kind lie, in granules of 256 bytes: (group, column), as kernels read them."""
        return self.pool.addresses(kind, self.tables[kind].pages[row])

    def release(self, row: int) -> None:
        """Gives back everything a row holds."""
        for index, table in enumerate(self.tables):
            self.pool.drop(index, table.clear(row), Holder.REQUEST)
