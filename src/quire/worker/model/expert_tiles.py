"""How experts' products are cut, by how many tokens an expert has on average: what was fastest on an H200."""

from __future__ import annotations

from quire.worker.kernels.experts import Tile

FEW, SOME = 8, 24
"""Tokens of an expert on average, up to which tiles of 16 and of 32 are used."""
SMALL = Tile(16, 32, 128, 4, 4, swaps=True), Tile(16, 64, 64, 4, 4, swaps=True)
MIDDLE = Tile(32, 32, 128, 4, 4, swaps=True, group=2), Tile(32, 64, 64, 4, 4, swaps=True, group=2)
WIDE = Tile(64, 64, 64, 4, 4, group=8, copies=True), Tile(64, 128, 64, 4, 4, group=8, copies=True)
LARGE = Tile(128, 128, 64, 8, 4, group=8, copies=True), Tile(128, 256, 64, 8, 4, group=8, copies=True)
SMALL_PACKED = Tile(16, 32, 128, 4, 3, swaps=True), Tile(16, 64, 128, 4, 3, swaps=True)
MIDDLE_PACKED = Tile(32, 32, 128, 4, 3, swaps=True, group=2), Tile(32, 64, 128, 4, 3, swaps=True, group=2)
LARGE_PACKED = Tile(64, 64, 64, 4, 3, group=8), Tile(64, 64, 64, 4, 3, group=8)


def tiles_for(pairs: int, experts: int, is_packed: bool) -> tuple[Tile, Tile]:
    """Of both products. Both have the same number of rows."""
    mean = pairs / experts
    if is_packed:
        return SMALL_PACKED if mean <= FEW else MIDDLE_PACKED if mean <= SOME else LARGE_PACKED
    return SMALL if mean <= FEW else MIDDLE if mean <= SOME else WIDE if mean <= 2 * SOME else LARGE
