"""The first half of a gated MLP: silu(x · gateᵀ) × (x · upᵀ), or the same with gelu, from a weight that holds gate
above up.

One launch multiplies and joins both halves without writing them to memory: faster where tiles are full, or where a
product costs as much as reading the weight. Elsewhere cuBLAS multiplies, and a second kernel joins the halves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch.nn import functional
from triton.tools.tensor_descriptor import TensorDescriptor

from quire.worker.kernels.tile import dot

DEPTH = 64
"""Inputs at a time."""
STEP = tl.constexpr(DEPTH)
NUMBER_BYTES = 2
NUMBERS = 1024


@dataclass(frozen=True, slots=True)
class Tile:
    """The tile of a program, for `first` to `last` tokens."""

    first: int
    last: int
    rows: int
    outputs: int
    """Outputs of each half."""
    stages: int

    @property
    def shared_bytes(self) -> int:
        return self.stages * DEPTH * (self.rows + 2 * self.outputs) * NUMBER_BYTES


TILES = (Tile(33, 64, 64, 64, 3), Tile(97, 128, 128, 64, 3), Tile(256, 256, 128, 128, 4))
"""Between them cuBLAS is faster."""


@triton.jit
def multiply_gated(tokens, weight, out, count, width, inputs, rows: tl.constexpr, columns: tl.constexpr,
                   is_gelu: tl.constexpr):  # fmt: skip
    """Grid (block of tokens, block of outputs). `tokens` and `weight` (half, output, input) are descriptors: the
    hardware copies whole tiles. A tile holds both halves."""
    top, begin = tl.program_id(0) * rows, tl.program_id(1) * columns
    both = tl.full([rows, 2 * columns], 0.0, tl.float32)
    for first in tl.range(0, inputs, STEP):
        halves = tl.reshape(weight.load([0, begin, first]), [2 * columns, STEP])
        both = dot(tokens.load([top, first]), tl.trans(halves), both)
    cut = tl.reshape(both.to(out.dtype.element_ty), [rows, 2, columns])
    gates, ups = tl.split(tl.permute(cut, [0, 2, 1]))
    row, column = top + tl.arange(0, rows), begin + tl.arange(0, columns)
    tl.store(out + row[:, None] * width + column[None, :], join(gates, ups, is_gelu), mask=(row < count)[:, None])


@triton.jit
def join_halves(halves, out, width, numbers: tl.constexpr, is_gelu: tl.constexpr):
    """Grid (token, block of outputs)."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * numbers + tl.arange(0, numbers)
    there = column < width
    gates = tl.load(halves + token * 2 * width + column, mask=there)
    ups = tl.load(halves + (token * 2 + 1) * width + column, mask=there)
    tl.store(out + token * width + column, join(gates, ups, is_gelu), mask=there)


@triton.jit
def join(gates, ups, is_gelu: tl.constexpr):
    """Rounded where torch rounds. (1 + tanh(x)) ÷ 2 is the sigmoid of 2x; beyond 80, exp could overflow."""
    wide = gates.to(tl.float32)
    slope = wide
    if is_gelu:
        slope = 1.5957691216057308 * (wide + 0.044715 * wide * wide * wide)
    part = wide / (1 + tl.exp(tl.minimum(-slope, 80.0)))
    return (part.to(gates.dtype).to(tl.float32) * ups.to(tl.float32)).to(gates.dtype)


@torch.library.custom_op("quire::gated", mutates_args=())
def gated(tokens: torch.Tensor, weight: torch.Tensor, is_gelu: bool = False) -> torch.Tensor:
    """(…, inputs) times (2 × outputs, inputs): (…, outputs). `is_gelu`: gelu with tanh instead of silu."""
    flat = tokens.reshape(-1, tokens.shape[-1])
    width = len(weight) // 2
    out = tokens.new_empty(*tokens.shape[:-1], width)
    tile = tile_of(len(flat), weight)
    if tile is not None:
        _multiply(flat.contiguous(), weight, out, tile, is_gelu)
    else:
        _join(functional.linear(flat, weight), out, is_gelu)
    return out


@gated.register_fake
def _(tokens: torch.Tensor, weight: torch.Tensor, is_gelu: bool = False) -> torch.Tensor:
    del is_gelu
    return tokens.new_empty(*tokens.shape[:-1], len(weight) // 2)


@torch.library.custom_op("quire::joined", mutates_args=())
def joined(halves: torch.Tensor, is_gelu: bool = False) -> torch.Tensor:
    """(…, 2 × outputs): (…, outputs), for halves that something else has multiplied."""
    out = halves.new_empty(*halves.shape[:-1], halves.shape[-1] // 2)
    _join(halves.reshape(-1, halves.shape[-1]).contiguous(), out, is_gelu)
    return out


@joined.register_fake
def _(halves: torch.Tensor, is_gelu: bool = False) -> torch.Tensor:
    del is_gelu
    return halves.new_empty(*halves.shape[:-1], halves.shape[-1] // 2)


def _join(halves: torch.Tensor, out: torch.Tensor, is_gelu: bool) -> None:
    width = out.shape[-1]
    join_halves[(len(halves), triton.cdiv(width, NUMBERS))](halves, out, width, NUMBERS, is_gelu)


def tile_of(tokens: int, weight: torch.Tensor) -> Tile | None:
    """None: cuBLAS multiplies, because it is faster, tiles do not divide the weight, or they do not fit."""
    tile = next((tile for tile in TILES if tile.first <= tokens <= tile.last), None)
    if tile is None or weight.element_size() != NUMBER_BYTES or not weight.is_contiguous():
        return None
    is_whole = len(weight) // 2 % tile.outputs == 0 and weight.shape[1] % DEPTH == 0
    return tile if is_whole and tile.shared_bytes <= shared_bytes_of(weight.device) else None


def shared_bytes_of(device: torch.device) -> float:
    """Shared memory of one program; the interpreter has no limit."""
    if device.type != "cuda":
        return math.inf
    return float(torch.cuda.get_device_properties(device).shared_memory_per_block_optin)  # type: ignore[attr-defined]


def _multiply(flat: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, tile: Tile, is_gelu: bool) -> None:
    inputs, width = flat.shape[1], len(weight) // 2
    tokens = TensorDescriptor.from_tensor(flat, [tile.rows, DEPTH])
    halves = TensorDescriptor.from_tensor(weight.view(2, width, inputs), [2, tile.outputs, DEPTH])
    multiply_gated[(triton.cdiv(len(flat), tile.rows), width // tile.outputs)](
        tokens, halves, out, len(flat), width, inputs, tile.rows, tile.outputs, is_gelu,
        num_warps=8, num_stages=tile.stages,
    )  # fmt: skip
