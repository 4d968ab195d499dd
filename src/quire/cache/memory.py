"""A stage's memory: pool and tables. What a request holds follows from what it has settled and has in flight."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quire.cache.pool import Holder, Pool
from quire.cache.tables import Rows, Table
from quire.kinds import Counts
from quire.plan.plan import Plan, StagePlan


class StageMemory:
    """Answers whether rows can grow, grows them, and takes back what left their live sets."""

    def __init__(self, stage: StagePlan, plan: Plan, rows: int) -> None:
        self.stage = stage
        self.pool = Pool(stage, plan.reserved_pages)
        self.tables = [Table(k, rows, plan.max_length, plan.batch_tokens, plan.lookahead) for k in stage.kinds]

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

    def release(self, row: int) -> None:
        """Gives back everything a row holds."""
        for index, table in enumerate(self.tables):
            self.pool.drop(index, table.clear(row), Holder.REQUEST)
