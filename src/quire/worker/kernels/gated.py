"""The first half of a gated MLP: silu(x · gateᵀ) × (x · upᵀ), from a weight that holds gate above up.

With few tokens a product costs what reading the weight costs: one launch multiplies both halves and joins them, and
nothing in between goes to memory. With more, or very few, cuBLAS multiplies faster, and the halves are joined after it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch.nn import functional
from triton.tools.tensor_descriptor import TensorDescriptor

from quire.worker.kernels.tile import dot

FEWEST_TOKENS, MOST_TOKENS = 33, 128
OUTPUTS, DEPTH = 64, 64
"""Of a program: of each half, and inputs at a time."""
NUMBERS = 1024


@triton.jit
def multiply_gated(tokens, gate, up, out, count, width, inputs, rows: tl.constexpr, columns: tl.constexpr,
                   depth: tl.constexpr):  # fmt: skip
    """Grid (block of outputs,). `tokens`, `gate` and `up` are descriptors: the hardware copies whole tiles."""
    begin = tl.program_id(0) * columns
    gates = tl.full([rows, columns], 0.0, tl.float32)
    ups = tl.full([rows, columns], 0.0, tl.float32)
    for first in tl.range(0, inputs, depth):
        found = tokens.load([0, first])
        gates = dot(found, tl.trans(gate.load([begin, first])), gates)
        ups = dot(found, tl.trans(up.load([begin, first])), ups)
    row, column = tl.arange(0, rows), begin + tl.arange(0, columns)
    numbers = join(gates.to(out.dtype.element_ty), ups.to(out.dtype.element_ty))
    tl.store(out + row[:, None] * width + column[None, :], numbers, mask=(row < count)[:, None])


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
    if FEWEST_TOKENS <= len(flat) <= MOST_TOKENS and is_even(weight):
        _multiply(flat.contiguous(), weight, out, width)
    else:
        halves = functional.linear(flat, weight)
        join_halves[(len(flat), triton.cdiv(width, NUMBERS))](halves, out, width, NUMBERS)
    return out


@gated.register_fake
def _(tokens: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return tokens.new_empty(*tokens.shape[:-1], len(weight) // 2)


def is_even(weight: torch.Tensor) -> bool:
    """Programs and their tiles end where the weight does; 16 bits, for tiles must fit in shared memory."""
    is_whole = len(weight) // 2 % OUTPUTS == 0 and weight.shape[1] % DEPTH == 0
    return is_whole and weight.element_size() == 2 and weight.is_contiguous()


def _multiply(flat: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, width: int) -> None:
    rows = 64 if len(flat) <= 64 else 128
    tokens = TensorDescriptor.from_tensor(flat, [rows, DEPTH])
    gate, up = (TensorDescriptor.from_tensor(half, [OUTPUTS, DEPTH]) for half in (weight[:width], weight[width:]))
    multiply_gated[(width // OUTPUTS,)](
        tokens, gate, up, out, len(flat), width, flat.shape[1], rows, OUTPUTS, DEPTH, num_warps=8, num_stages=3
    )
