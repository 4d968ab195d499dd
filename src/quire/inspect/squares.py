"""The pool of each stage as squares: for every sheet its kind, and how many of its pages are in which state.

holders of a kind's pages ──▶ (sheets of the kind, pages per sheet) ──sum──▶ a number for each sheet and state
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from quire.cache.memory import StageMemory
from quire.cache.pool import BITS, Holder, Pages, Pool
from quire.engine.engine import Engine
from quire.inspect.views import NOTHING, Column, KindView, Squares, StageView
from quire.prefix.lease_pages import leased_pages
from quire.prefix.nodes import Nodes

STATES = ("used", "cached", "leased", "transfer", "pinned", "backend")
USUAL = ("used", "cached")
"""Columns that are never left out: the first page in one of these states is a small difference."""
NO_PAGES: Pages = np.zeros(0, dtype=np.int64)
Marks = npt.NDArray[np.bool_]
HELD = {holder: np.int64((1 << BITS) - 1 << BITS * holder) for holder in (Holder.REQUEST, Holder.CACHE, Holder.PIN)}
"""Bits of a page's word that say how often a holder holds it."""


def stages_of(engine: Engine) -> tuple[StageView, ...]:
    scheduler = engine.scheduler
    nodes = scheduler.reuse.index.nodes if engine.leases() else None
    loading = np.flatnonzero(scheduler.rows.is_loading).tolist() if len(scheduler.loads) else []
    return tuple(_stage(stage, memory, nodes, loading) for stage, memory in enumerate(scheduler.memories))


def _stage(number: int, memory: StageMemory, nodes: Nodes | None, loading: list[int]) -> StageView:
    pool, stage = memory.pool, memory.stage
    columns = {state: np.zeros(stage.sheets, dtype=np.uint16) for state in STATES}
    kinds = []
    for kind in range(len(stage.kinds)):
        sheets = np.flatnonzero(pool.owner == kind)
        counts = _counts(memory, kind, sheets, nodes, loading)
        for state, own in counts.items():
            columns[state][sheets] = own
        kinds.append(_kind(memory, kind, len(sheets), counts))
    shown = {state: column if state in USUAL or column.any() else NOTHING for state, column in columns.items()}
    return StageView(
        stage=number,
        sheets=stage.sheets,
        sheet_bytes=stage.sheet_bytes,
        free_sheets=pool.free_sheets,
        lease_sheets=stage.lease_sheets,
        kinds=tuple(kinds),
        squares=Squares(pool.owner.astype(np.uint8), **shown),
    )


def _kind(memory: StageMemory, kind: int, sheets: int, counts: Mapping[str, Column]) -> KindView:
    plan = memory.stage.kinds[kind]
    pages = {f"{state}_pages": int(own.sum()) for state, own in counts.items()}
    return KindView(
        kind=plan.name,
        page_tokens=plan.page_tokens,
        page_bytes=plan.page_bytes,
        pages_per_sheet=plan.pages_per_sheet,
        sheets=sheets,
        free_pages=memory.pool.shelves[kind].free_pages,
        **pages,
    )


def _counts(
    memory: StageMemory, kind: int, sheets: Pages, nodes: Nodes | None, loading: list[int]
) -> dict[str, Column]:
    """By state, for each of the kind's sheets: how many of its pages are in that state. A page that several hold is in
    the first of the states used, cached, pinned and backend."""
    shelf = memory.pool.shelves[kind]
    words = shelf.holders.reshape(-1, shelf.pages_per_sheet)[sheets]
    found, left = {}, words != 0
    for state, holder in (("used", Holder.REQUEST), ("cached", Holder.CACHE), ("pinned", Holder.PIN)):
        held = _is_held(words, holder) & left
        left &= ~held
        found[state] = held.sum(axis=1)
    found["backend"] = left.sum(axis=1)
    leased = NO_PAGES if nodes is None else leased_pages(memory, kind, nodes)
    transfer = [memory.tables[kind].held(row) for row in loading]
    found["leased"] = _in_sheets(memory.pool, kind, leased, sheets)
    found["transfer"] = _in_sheets(memory.pool, kind, np.concatenate([NO_PAGES, *transfer]), sheets)
    return found


def _is_held(words: Pages, holder: Holder) -> Marks:
    return np.asarray(words & HELD[holder] != 0, dtype=np.bool_)


def _in_sheets(pool: Pool, kind: int, pages: Pages, sheets: Pages) -> Column:
    """How many of these pages, each counted once, lie in each of the sheets."""
    if not len(pages):
        return np.zeros(len(sheets), dtype=np.int64)
    shelf = pool.shelves[kind]
    counted = np.bincount(shelf.sheet[np.unique(pages)], minlength=len(pool.owner))
    return np.asarray(counted[sheets], dtype=np.int64)
