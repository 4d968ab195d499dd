"""How attention is cut into programs: blocks of queries, and pieces of the tokens that each block reads.

    row's tokens   ├ sinks ┤ · · · · · ├──────────── run ────────────┤
    pieces          [ p 0 ]             [  p 1  ][  p 2  ][  p 3  ]      one program each, for every key head
    queries                                              [ a ][ b ]      a block reads pieces of its own

A block with one piece writes its result; the pieces of other blocks are joined afterwards. Longest pieces come first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
ITEM_FIELDS = ("table_row", "place", "position", "queries", "begin", "end", "pieces", "slot")
JOIN_FIELDS = ("place", "queries", "slot", "pieces")
INVARIANT_PIECE_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class Sight:
    """What a query sees of the tokens up to itself: all, or the last `window`, or its own `chunk`. 0: no such bound."""

    window: int = 0
    chunk: int = 0
    sinks: int = 0
    """Tokens at the start that are seen in addition to the window."""

    def first(self, positions: Ints) -> Ints:
        """Where the contiguous run of tokens that a query sees begins."""
        if self.chunk:
            return positions // self.chunk * self.chunk
        return np.maximum(0, positions - self.window + 1) if self.window else np.zeros_like(positions)


@dataclass(frozen=True, slots=True, eq=False)
class QueryRows:
    """Rows of a step that one launch computes: arrays of one length."""

    table_rows: Ints
    places: Ints
    """Place of a row's first query in the packed batch."""
    positions: Ints
    """Position of a row's first query."""
    counts: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Items for programs, and the blocks whose pieces are joined."""

    items: npt.NDArray[np.int32]
    """(item, ITEM_FIELDS). Tokens [begin, end) for `queries` queries from `place` on, the first at `position`."""
    joins: npt.NDArray[np.int32]
    """(block, JOIN_FIELDS): blocks of several pieces, whose partial results lie in `slot`, `slot` + 1, …."""

    @property
    def slots(self) -> int:
        return int(self.joins[:, 3].sum())


def blocks_of(rows: QueryRows, block_queries: int) -> QueryRows:
    """Blocks of at most `block_queries` queries of one row."""
    blocks = -(-rows.counts // block_queries)
    row = np.repeat(np.arange(len(blocks)), blocks)
    offset = (np.arange(len(row)) - (np.cumsum(blocks) - blocks)[row]) * block_queries
    counts = np.minimum(block_queries, rows.counts[row] - offset)
    return QueryRows(rows.table_rows[row], rows.places[row] + offset, rows.positions[row] + offset, counts)


def cut(blocks: QueryRows, sight: Sight, piece_tokens: int) -> Work:
    """Cuts every block's tokens into pieces of at most `piece_tokens`."""
    block, begin, end = _pieces(blocks, sight, piece_tokens)
    pieces = np.bincount(block, minlength=len(blocks.counts))
    first = np.cumsum(pieces) - pieces
    shared = np.where(pieces > 1, pieces, 0)
    slots = np.cumsum(shared) - shared
    slot = slots[block] + np.arange(len(block)) - first[block]
    fields = (blocks.table_rows, blocks.places, blocks.positions, blocks.counts)
    items = np.stack([*(field[block] for field in fields), begin, end, pieces[block], slot], axis=1)
    longest_first = np.argsort(begin - end, kind="stable")
    joins = np.stack([blocks.places, blocks.counts, slots, pieces], axis=1)[pieces > 1]
    return Work(items[longest_first].astype(np.int32), joins.astype(np.int32))


def invariant_piece_tokens(blocks: QueryRows, sight: Sight) -> int:
    """Length of pieces that does not depend on other rows. A window or a chunk is one piece."""
    is_bounded = bool(sight.window or sight.chunk)
    return int(lengths_of(blocks, sight).max(initial=1)) if is_bounded else INVARIANT_PIECE_TOKENS


def lengths_of(blocks: QueryRows, sight: Sight) -> Ints:
    """Tokens that each block reads in one run."""
    return np.asarray(blocks.positions + blocks.counts - sight.first(blocks.positions), dtype=np.int64)


def _pieces(blocks: QueryRows, sight: Sight, piece_tokens: int) -> tuple[Ints, Ints, Ints]:
    """(block, begin, end) of every piece, block by block: sinks that the run does not reach, then the run."""
    run = sight.first(blocks.positions)
    sinks = np.minimum(sight.sinks, run)
    begins = np.stack([np.zeros_like(run), run], axis=1).reshape(-1)
    ends = np.stack([sinks, blocks.positions + blocks.counts], axis=1).reshape(-1)
    pieces = -(-(ends - begins) // piece_tokens)
    part = np.repeat(np.arange(len(pieces)), pieces)
    begin = begins[part] + (np.arange(len(part)) - (np.cumsum(pieces) - pieces)[part]) * piece_tokens
    return part // 2, begin, np.minimum(begin + piece_tokens, ends[part])
