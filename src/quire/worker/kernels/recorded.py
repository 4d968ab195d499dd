"""Work of a decode step for a recorded launch: as many items as when it was recorded, whatever rows hold.

Rows that fill the processors are not cut: one item each, and nothing to join. Where cutting is faster there is room for
more items, and pieces are as short as that room allows. Items and blocks without queries fill the rest.
"""

from __future__ import annotations

import numpy as np

from quire.worker.kernels.shape import Tiles
from quire.worker.kernels.tiles import HeadShape, piece_tokens_for, tiles_for
from quire.worker.kernels.work import (
    ITEM_FIELDS,
    JOIN_FIELDS,
    QueryRows,
    Sight,
    Work,
    cut,
    invariant_piece_tokens,
    lengths_of,
)

NOTHING = np.array([[0, 0, 0, 0, 0, 0, 1, 0]], dtype=np.int32)
"""An item of no queries and no tokens, in one piece."""
INVARIANT_ITEMS = 2
"""Items per processor, in addition to one per row."""


def is_split(rows: QueryRows, sight: Sight, heads: HeadShape, processors: int) -> bool:
    """Whether cutting rows of one query into pieces is faster."""
    tiles, group = tiles_for(1, heads)
    lengths = lengths_of(rows, sight)
    return piece_tokens_for(lengths, heads.query // group, tiles, processors) < int(lengths.max(initial=0))


def fixed_work(rows: QueryRows, sight: Sight, heads: HeadShape, processors: int, splits: bool) -> tuple[Work, int]:
    """Work whose size depends on the number of rows alone, and the greatest number of partial results."""
    tiles, group = tiles_for(1, heads)
    own = len(rows.counts) * (2 if sight.sinks else 1)
    more = -(-2 * processors * tiles.programs * group // heads.query) if splits else 0
    shared = 2 * (own - len(rows.counts) + more)
    work = _cut(rows, sight, heads, processors, tiles, own + more if splits or sight.sinks else 0)
    joins = min(len(rows.counts), shared)
    assert work.slots <= shared, "pieces beyond a row's first are counted"
    return Work(_fill(work.items, own + more, NOTHING), _fill(work.joins, joins, _no_join())), shared


def invariant_work(rows: QueryRows, sight: Sight, processors: int, splits: bool) -> tuple[Work, int]:
    """The same for pieces of a fixed length. `invariant_fits` must hold."""
    own, more = len(rows.counts), _invariant_room(processors) if splits else 0
    work = cut(rows, sight, invariant_piece_tokens(rows, sight))
    assert len(work.items) <= own + more, "invariant_fits holds"
    joins = _fill(work.joins, min(own, more), _no_join())
    return Work(_fill(work.items, own + more, NOTHING), joins), 2 * more


def invariant_pieces(rows: QueryRows, sight: Sight) -> int:
    """Pieces beyond the first of each row."""
    return len(cut(rows, sight, invariant_piece_tokens(rows, sight)).items) - len(rows.counts)


def invariant_fits(rows: QueryRows, sight: Sight, processors: int) -> bool:
    return invariant_pieces(rows, sight) <= _invariant_room(processors)


def _invariant_room(processors: int) -> int:
    return INVARIANT_ITEMS * processors


def _cut(rows: QueryRows, sight: Sight, heads: HeadShape, processors: int, tiles: Tiles, room: int) -> Work:
    """Cuts rows into at most `room` items; 0: rows stay whole."""
    lengths = lengths_of(rows, sight)
    longest = max(int(lengths.max(initial=1)), sight.sinks)
    if not room:
        return cut(rows, sight, longest)
    piece = piece_tokens_for(lengths, heads.query // tiles_for(1, heads)[1], tiles, processors)
    while len((work := cut(rows, sight, piece)).items) > room:
        piece *= 2
    return work


def _no_join() -> np.ndarray:
    return np.zeros((1, len(JOIN_FIELDS)), dtype=np.int32)


def _fill(values: np.ndarray, count: int, filling: np.ndarray) -> np.ndarray:
    assert len(filling[0]) in (len(ITEM_FIELDS), len(JOIN_FIELDS))
    return np.concatenate([values, np.repeat(filling, count - len(values), axis=0)])
