"""The first half of a gated MLP: silu(x · gateᵀ) × (x · upᵀ), from a weight that holds gate above up.

With few tokens a product costs what reading the weight costs: one launch multiplies both halves and joins them, and
nothing in between goes to memory. Elsewhere cuBLAS multiplies faster, and the halves are joined after it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch.nn import functional
from triton.tools.tensor_descriptor import TensorDescriptor

from quire.worker.kernels.tile import dot

TILES = ((33, 64), (97, 128))
"""From so many tokens on: rows of a tile. Between tiles, cuBLAS is faster."""
OUTPUTS, DEPTH = 64, 64
"""Of a program: of each half, and inputs at a time."""
NUMBERS = 1024


@triton.jit
def multiply_gated(tokens, weight, out, count, width, inputs, rows: tl.constexpr, columns: tl.constexpr,
                   depth: tl.constexpr):  # fmt: skip
    """Grid (block of outputs,). `tokens` and `weight` (half, output, input) are descriptors: the hardware copies whole
    tiles. A tile of both halves is one product's."""
    begin = tl.program_id(0) * columns
    both = tl.full([rows, 2 * columns], 0.0, tl.float32)
    for first in tl.range(0, inputs, depth):
        halves = tl.reshape(weight.load([0, begin, first]), [2 * columns, depth])
        both = dot(tokens.load([0, first]), tl.trans(halves), both)
    cut = tl.reshape(both.to(out.dtype.element_ty), [rows, 2, columns])
    gates, ups = tl.split(tl.permute(cut, [0, 2, 1]))
    row, column = tl.arange(0, rows), begin + tl.arange(0, columns)
    tl.store(out + row[:, None] * width + column[None, :], join(gates, ups), mask=(row < count)[:, None])


@triton.jit
def join_halves(halves, out, width, numbers: tl.constexpr):
    """Grid (token, block of outputs)."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * numbers + tl.arange(0, numbers)
    there = column < width
    gates = tl.load(halves + token * 2 * width + column, mask=there)
    ups = tl.load(halves + (token * 2 + 1) * width + column, mask=there)
    tl.store(out + token * width + column, join(gates, ups), mask=there)


@triton.jit
def join(gates, ups):
    """Rounded where torch rounds."""
    wide = gates.to(tl.float32)
    return ((wide / (1 + tl.exp(-wide))).to(gates.dtype).to(tl.float32) * ups.to(tl.float32)).to(gates.dtype)


@torch.library.custom_op("quire::gated", mutates_args=())
def gated(tokens: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """(…, inputs) times (2 × outputs, inputs): (…, outputs)."""
    flat = tokens.reshape(-1, tokens.shape[-1])
    width = len(weight) // 2
    out = tokens.new_empty(*tokens.shape[:-1], width)
    tile = tile_of(len(flat))
    if tile is not None and is_even(weight):
        _multiply(flat.contiguous(), weight, out, tile)
    else:
        halves = functional.linear(flat, weight)
        join_halves[(len(flat), triton.cdiv(width, NUMBERS))](halves, out, width, NUMBERS)
    return out


@gated.register_fake
def _(tokens: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return tokens.new_empty(*tokens.shape[:-1], len(weight) // 2)


def tile_of(tokens: int) -> int | None:
    """Rows of the tile that holds them all; none: cuBLAS is faster."""
    return next((rows for first, rows in TILES if first <= tokens <= rows), None)


def is_even(weight: torch.Tensor) -> bool:
    """Programs and their tiles end where the weight does; 16 bits, for tiles must fit in shared memory."""
    is_whole = len(weight) // 2 % OUTPUTS == 0 and weight.shape[1] % DEPTH == 0
    return is_whole and weight.element_size() == 2 and weight.is_contiguous()


def _multiply(flat: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, rows: int) -> None:
    inputs, width = flat.shape[1], len(weight) // 2
    tokens = TensorDescriptor.from_tensor(flat, [rows, DEPTH])
    halves = TensorDescriptor.from_tensor(weight.view(2, width, inputs), [2, OUTPUTS, DEPTH])
    multiply_gated[(width // OUTPUTS,)](
        tokens, halves, out, len(flat), width, inputs, rows, OUTPUTS, DEPTH, num_warps=8, num_stages=3
    )
