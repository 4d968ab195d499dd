"""Moves the pages of a kind into as few sheets as possible, so that other kinds can use the sheets that become free.

    before   ▓░░░  ▓▓░░  ▓▓▓░  P░░░        P: a pinned page, never moved
    after    ····  ····  ▓▓▓░  P▓▓▓        pages move from the emptiest sheets into free slots of the fullest

It needs no spare sheet: a page moves into a slot that is already free. It runs only if it frees a sheet; afterwards the
kind has no more sheets than its pages need, except sheets with a pinned page. Tables are rewritten at once; the copies
must be ordered after the steps in flight.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quire.cache.memory import StageMemory
from quire.cache.pool import Holder, Pages, Shelf


@dataclass(frozen=True, slots=True)
class Moves:
    """Pages of one kind to copy, from `source` to `target`; no page is in both."""

    kind: int
    source: Pages
    target: Pages


def compact(memory: StageMemory) -> list[Moves]:
    """Compacts every kind where that frees a sheet, and returns which pages must be copied."""
    done = []
    for kind, shelf in enumerate(memory.pool.shelves):
        moves = find_moves(memory, kind)
        if sheets_freed(shelf, moves):
            _apply(memory, moves)
            done.append(moves)
    return done


def sheets_freed(shelf: Shelf, moves: Moves) -> int:
    left = shelf.used_in_sheet.copy()
    np.subtract.at(left, moves.source // shelf.pages_per_sheet, 1)
    np.add.at(left, moves.target // shelf.pages_per_sheet, 1)
    return int((shelf.used_in_sheet > 0).sum() - (left > 0).sum())


def find_moves(memory: StageMemory, kind: int) -> Moves:
    """The i-th free slot from the fullest sheet takes the i-th page from the emptiest, while that empties sheets."""
    shelf = memory.pool.shelves[kind]
    size = shelf.pages_per_sheet
    sheets = _fullest_first(shelf, np.flatnonzero(memory.pool.owner == kind))
    slots = (sheets[:, None] * size + np.arange(size)).ravel()
    fixed = _fixed(shelf)[slots]
    used = shelf.in_use()[slots]
    holes, movable = np.flatnonzero(~used), np.flatnonzero(used & ~fixed)[::-1]
    pairs = min(len(holes), len(movable))
    holes, movable = holes[:pairs], movable[:pairs]
    helpful = holes // size < movable // size
    return Moves(kind, slots[movable[helpful]], slots[holes[helpful]])


def _fixed(shelf: Shelf) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return (shelf.count(Holder.PIN) > 0) | (shelf.count(Holder.BACKEND) > 0)


def _fullest_first(shelf: Shelf, sheets: Pages) -> Pages:
    """Sheets with a fixed page first, because they cannot be emptied; then by pages in use."""
    has_fixed = np.asarray(_fixed(shelf).reshape(-1, shelf.pages_per_sheet).any(axis=1))[sheets]
    return sheets[np.lexsort((sheets, -shelf.used_in_sheet[sheets], ~has_fixed))]


def _apply(memory: StageMemory, moves: Moves) -> None:
    pool, table = memory.pool, memory.tables[moves.kind]
    pool.move(moves.kind, moves.source, moves.target)
    place = np.arange(len(pool.shelves[moves.kind].holders))
    place[moves.source] = moves.target
    table.relocate(place)
    if memory.kept:
        kept = memory.kept[moves.kind]
        kept.pages[:] = place[kept.pages]
