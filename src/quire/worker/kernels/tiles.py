"""How programs are cut, and how many: sizes measured on an H200 with `bench/kernels.py`."""

from __future__ import annotations

import numpy as np

from quire.worker.kernels.shape import Tiles, padded
from quire.worker.kernels.work import Ints

FEW_ROWS = 16
"""No more rows than this: reading tokens costs more than multiplying."""
WAVE_TOKENS = 64
"""What starting a program costs, and putting pieces together, in tokens that it could have read meanwhile."""


def tiles_for(rows: int, width: int, value_width: int, number_bytes: int) -> Tiles:
    """For blocks of up to `rows` queries × heads that share a key head."""
    row_bytes = number_bytes * max(padded(width), padded(value_width))
    tokens = min(64, max(16, 64 * 256 // row_bytes))
    if rows <= FEW_ROWS:
        return Tiles(FEW_ROWS, tokens, 4, 2, 4, False)
    if row_bytes > 512:
        return Tiles(min(padded(rows), 32), tokens, 4, 2, 1, True)
    if row_bytes > 256:
        return Tiles(min(padded(rows), 64), tokens, 4, 2, 1, True)
    return Tiles(128, tokens, 8, 3, 1, True)


def piece_tokens_for(lengths: Ints, key_heads: int, tiles: Tiles, processors: int) -> int:
    """The cut of `lengths` that is done soonest: programs run in waves, and each wave costs something to start."""
    slots = processors * tiles.programs
    longest = int(lengths.max(initial=1))
    choices = [tiles.tokens << power for power in range(20) if tiles.tokens << power < 2 * longest]
    return min(choices, key=lambda piece: _tokens_until_done(lengths, piece, key_heads, slots))


def _tokens_until_done(lengths: Ints, piece_tokens: int, key_heads: int, slots: int) -> float:
    pieces = -(-lengths // piece_tokens)
    programs = int(pieces.sum()) * key_heads
    waves = -(-programs // slots)
    mean = float(lengths.sum()) * key_heads / max(1, programs)
    longest = float(np.minimum(lengths, piece_tokens).max(initial=0))
    is_split = bool((pieces > 1).any())
    return max(longest, waves * mean) + WAVE_TOKENS * (waves + is_split)
