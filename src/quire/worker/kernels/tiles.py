"""Sizes and numbers of programs: those that were fastest on an H200."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from quire.worker.kernels.shape import Tiles, pad
from quire.worker.kernels.work import Ints

LEAST_ROWS = 16
"""Rows that matrix units multiply at least."""
FEW_ROWS = 64
"""Up to this many, reading tokens costs more than multiplying."""
WIDE_HEAD_BYTES = 512
"""Heads of 256 numbers in 16 bits: tiles of 128 rows still leave registers for them, with 8 warps."""
WAVE_TOKENS = 64
"""Cost of starting a program, and of joining pieces, in tokens that could be read in that time."""
WIDE_LATENT = 256
"""From here on a latent is read in quarters (`latents.py`)."""
MANY_WAVES = 8
"""From here on the last wave need not be full."""


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Heads of one layer's attention."""

    query: int
    key: int
    width: int
    value_width: int
    number_bytes: int
    rope_width: int = 0
    """Latents: the rotary part after `width`. All query heads share one latent."""


def tiles_for(queries: int, heads: HeadShape) -> tuple[Tiles, int]:
    """Tiles for blocks of up to `queries` queries, and the number of heads that share a key head in one program."""
    if heads.rope_width:
        return _latent_tiles(queries, heads)
    group = heads.query // heads.key
    row_bytes = heads.number_bytes * max(pad(heads.width), pad(heads.value_width))
    tokens = min(128, max(16, 64 * 256 // row_bytes))
    if queries * group <= max(LEAST_ROWS, FEW_ROWS * 256 // max(256, row_bytes)):
        stages, programs = (3, 2) if heads.number_bytes == 1 else (2, 4)
        return Tiles(pad(queries * group), tokens, 4, stages, programs, is_peeled=False), group
    tokens = min(tokens, 64) if heads.number_bytes == 1 else tokens  # 8-bit numbers are multiplied in 16 bits
    if row_bytes == WIDE_HEAD_BYTES and heads.number_bytes == 2 and queries * group >= 128:
        return Tiles(max(pad(group), 128), 32, 8, 3, 1, is_peeled=True), group
    if row_bytes > 256:
        return Tiles(max(pad(group), 32), tokens, 4, 2, 1, is_peeled=True), group
    if queries * group <= 128:
        return Tiles(128, tokens, 8, 3, 1, is_peeled=True), group
    return Tiles(256, tokens, 16, 3, 1, is_peeled=True), group


def _latent_tiles(queries: int, heads: HeadShape) -> tuple[Tiles, int]:
    group = next(share for share in range(min(heads.query, FEW_ROWS), 0, -1) if heads.query % share == 0)
    if queries * group <= LEAST_ROWS and heads.number_bytes == 2 and pad(heads.width) >= WIDE_LATENT:
        return Tiles(LEAST_ROWS, 64, 4, 3, 1, is_peeled=False), group
    if queries * group <= LEAST_ROWS:
        return Tiles(LEAST_ROWS, 64, 4, 2, 2, is_peeled=False), group
    return Tiles(64, 64, 8, 2, 1, is_peeled=False), group


def invariant_tiles(heads: HeadShape) -> tuple[Tiles, int]:
    """The same for any number of queries."""
    group = heads.query // heads.key
    row_bytes = heads.number_bytes * max(pad(heads.width), pad(heads.value_width))
    tokens = min(64, max(16, 64 * 256 // row_bytes))
    warps = 4 if row_bytes <= 256 else 8
    return Tiles(max(64, pad(group)), tokens, warps, 2, 2, is_peeled=False), group


def piece_tokens_for(lengths: Ints, programs: int, tiles: Tiles, processors: int) -> int:
    """The fastest length of pieces; `programs` run for each piece, a wave of them at a time."""
    slots = processors * tiles.programs
    longest = int(lengths.max(initial=1))
    choices = [tiles.tokens << power for power in range(24) if tiles.tokens << power < 2 * longest]
    return min(choices or [tiles.tokens], key=lambda piece: _tokens_until_done(lengths, piece, programs, slots))


def _tokens_until_done(lengths: Ints, piece_tokens: int, programs: int, slots: int) -> float:
    pieces = -(-lengths // piece_tokens)
    waves = float(pieces.sum()) * programs / slots
    mean = float(lengths.sum()) / max(1, int(pieces.sum()))
    waves = waves if waves > MANY_WAVES else math.ceil(waves)
    longest = float(np.minimum(lengths, piece_tokens).max(initial=0))
    is_split = bool((pieces > 1).any())
    return max(longest, waves * mean) + WAVE_TOKENS * (waves + is_split)
