"""How experts' products are cut, by how many tokens an expert has on average and by what its weights are.

Measured on one H200 (torch 2.11, triton 3.6), µs of a layer's first and second product. Floors: bytes at 4.4 TB/s, or
multiplications at 790 TFLOP/s. Between these points the larger tile begins where its padding costs less.

    tokens an expert   weights                                first   floor   second   floor
    4 (64 tokens)      bf16, 128 × (2 × 768 × 2,048)            183     180       96      90
    16 (256)           bf16                                     199     183      104      92
    64 (1,024)         bf16                                     230     183      128      92
    512 (8,192)        bf16                                     738     522      441     261
    4 (64)             fp8                                      124      90       74      45
    512 (8,192)        fp8                                    1,091     522
    8 (64)             fp4, 32 × (2 × 2,880 × 2,880)            190      64       98      32
    32 (256)           fp4                                      280      64      168      32
    64 (512)           fp4                                      373      86      204      43
    128 (1,024)        fp4                                      581     172      343      86
"""

from __future__ import annotations

import torch
import triton

from quire.worker.kernels.experts import Product, Tile
from quire.worker.kernels.gated import shared_bytes_of
from quire.worker.kernels.octets import NIBBLES

Tiles = tuple[Tile, Tile]
FEW, SOME, MANY = 10, 32, 96
"""Tokens of an expert on average, up to which tiles of 16, of 32 and of 64 are used."""
SMALL: Tiles = Tile(16, 64, 128, 4, 3, swaps=True), Tile(16, 128, 128, 4, 3, swaps=True)
MIDDLE: Tiles = (
    Tile(32, 64, 64, 4, 4, swaps=True, group=2),
    Tile(32, 128, 64, 4, 4, swaps=True, group=2, copies=True),
)
WIDE: Tiles = Tile(64, 128, 64, 8, 4, group=8, copies=True), Tile(64, 256, 64, 8, 4, group=8, copies=True)
LARGE: Tiles = Tile(128, 128, 64, 8, 4, group=8, copies=True), Tile(128, 256, 64, 8, 4, group=8, copies=True)
SMALL_PACKED: Tiles = Tile(16, 32, 128, 4, 3), Tile(16, 32, 128, 4, 3)
SMALL_NIBBLES: Tiles = Tile(16, 64, 128, 4, 3), Tile(16, 64, 128, 4, 3)
MIDDLE_NIBBLES: Tiles = (Tile(32, 64, 64, 4, 4, swaps=True, group=2),) * 2
LARGE_NIBBLES: Tiles = Tile(64, 64, 64, 4, 3, swaps=True, group=8), Tile(64, 128, 64, 8, 3, swaps=True, group=8)
MIDDLE_PACKED: Tiles = Tile(32, 32, 128, 4, 3, swaps=True, group=2), Tile(32, 64, 128, 4, 3, swaps=True, group=2)
LARGE_PACKED: Tiles = Tile(64, 64, 64, 4, 3, group=8), Tile(64, 64, 64, 4, 3, group=8)
EXACT = Tile(16, 32, 32, 4, 2)
"""For fp32, which matrix units do not multiply exactly."""
SPARE_BYTES = 2048
"""Of shared memory, for what is not numbers."""


def tiles_for(pairs: int, products: tuple[Product, Product], tokens: torch.Tensor) -> Tiles:
    """Of both products. Both have the same number of rows."""
    if tokens.element_size() > 2:
        return EXACT, EXACT
    kinds = [product.facts[0] for product in products if product.facts]
    mean = pairs / len(products[0].weight)
    first, second = measured(mean, kinds[0] if kinds else None)
    limit, outputs = shared_bytes_of(tokens.device), [product.sizes[0] for product in products]
    return fitted(first, outputs[0], 2, limit), fitted(second, outputs[1], 1, limit)


def measured(mean: float, kind: int | None) -> Tiles:
    """`kind`: of packed codes."""
    if kind is None:
        return SMALL if mean <= FEW else MIDDLE if mean <= SOME else WIDE if mean <= MANY else LARGE
    if kind in NIBBLES:
        return SMALL_NIBBLES if mean <= FEW else MIDDLE_NIBBLES if mean <= SOME else LARGE_NIBBLES
    return SMALL_PACKED if mean <= FEW else MIDDLE_PACKED if mean <= SOME else LARGE_PACKED


def fitted(tile: Tile, outputs: int, halves: int, limit: float) -> Tile:
    """No wider than the weight, and in no more stages than shared memory holds. `halves`: 2 for a gate and what it
    multiplies, which a tile holds both."""
    columns = min(tile.columns, max(16, triton.next_power_of_2(outputs // halves)))
    stage = 2 * tile.depth * (tile.rows + halves * columns)
    stages = min(tile.stages, (limit - SPARE_BYTES) // stage)
    return tile._replace(columns=columns, stages=max(1, int(stages)))
