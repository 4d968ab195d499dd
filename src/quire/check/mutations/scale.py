"""Planted bugs that only large systems meet: many rows at once, long outputs, many nodes, long lines."""

from __future__ import annotations

from typing import Any

import numpy as np

from quire.cache.memory import StageMemory
from quire.cache.tables import FEW_ROWS, Table
from quire.check.mutations.base import Mutation, Original, number
from quire.scheduler import admission
from quire.scheduler.rows import Rows


def _exchanged(append: Original) -> Original:
    def wrong(self: Table, rows: Any, new: Any, pages: Any) -> None:
        append(self, rows, np.roll(new, 1) if len(rows) > FEW_ROWS else new, pages)

    return wrong


def _one_page_less(cut: Original) -> Original:
    def wrong(self: Table, rows: Any, settled: Any) -> Any:
        pages = cut(self, rows, settled)
        return pages if pages is None or len(rows) <= FEW_ROWS else pages[1:]

    return wrong


def _without_old(widen: Original) -> Original:
    def wrong(self: Rows, columns: int) -> None:
        before = self.outputs.shape[1]
        widen(self, columns)
        if self.outputs.shape[1] > before:
            self.outputs[:] = 0

    return wrong


def _without_kept(widen: Original) -> Original:
    def wrong(self: StageMemory) -> None:
        widen(self)
        for kept in self.kept:
            kept.present[:] = False

    return wrong


SCALE: dict[str, Mutation] = {
    "pages-of-many-rows-exchanged": Mutation(
        "where many rows get pages at once, some get those of others", Table, "append", _exchanged
    ),
    "pages-of-many-rows-kept": Mutation(
        "where many rows give pages back at once, one is left out", Table, "cut", _one_page_less
    ),
    "long-outputs-lost": Mutation("outputs that grow beyond their first room are lost", Rows, "_widen", _without_old),
    "wider-index-forgets": Mutation(
        "an index that grows beyond its first room loses its pages", StageMemory, "widen", _without_kept
    ),
    "newcomers-without-end": Mutation(
        "a step admits as many requests as there are rows", admission, "MOST_NEWCOMERS", number(1 << 20)
    ),
    "sight-without-end": Mutation(
        "a step passes over any number of requests", admission, "QUEUE_SIGHT", number(1 << 20)
    ),
}
