"""Products of tokens and a weight whose results do not depend on the other tokens.

One program sums every number of a result from its first product to its last, so a row does not depend on the number of
others. Tiles differ by the number of tokens, for speed; the order of a sum does not.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from quire.worker.kernels.tile import dot

FEW_OUTPUTS = 8192
"""Up to this many, narrow programs keep more processors busy."""


@triton.jit
def multiply(
    tokens, weight, bias, out, count, outputs, inputs, weight_stride,
    rows: tl.constexpr, columns: tl.constexpr, depth: tl.constexpr, is_even: tl.constexpr, has_bias: tl.constexpr,
):  # fmt: skip
    """Grid (block of outputs, block of tokens)."""
    row = tl.program_id(1) * rows + tl.arange(0, rows)
    column = tl.program_id(0) * columns + tl.arange(0, columns)
    number = tl.arange(0, depth)
    left = tokens + row[:, None].to(tl.int64) * inputs + number[None, :]
    right = weight + column[:, None].to(tl.int64) * weight_stride + number[None, :]
    is_row, is_column = (row < count)[:, None], (column < outputs)[:, None]
    total = tl.full([rows, columns], 0.0, tl.float32)
    for first in tl.range(0, inputs, depth):
        is_given, is_asked = is_row, is_column
        if not is_even:
            there = (first + number < inputs)[None, :]
            is_given, is_asked = is_row & there, is_column & there
        found = tl.load(left + first, mask=is_given, other=0.0)
        total = dot(found, tl.trans(tl.load(right + first, mask=is_asked, other=0.0)), total)
    if has_bias:
        total += tl.load(bias + column, mask=column < outputs, other=0.0).to(tl.float32)[None, :]
    places = out + row[:, None].to(tl.int64) * outputs + column[None, :]
    tl.store(places, total.to(out.dtype.element_ty), mask=is_row & (column < outputs)[None, :])


def tile_of(count: int, outputs: int) -> tuple[int, int, int, int]:
    """(tokens, outputs, bytes of each at a time, warps) of a program. Matrix units of a Hopper GPU take at least 64
    tokens: with fewer, the compiler would choose another instruction."""
    rows = 64 if count <= 64 else 128
    if count > 256 or outputs > FEW_OUTPUTS:
        return rows, 128, 128, 8
    return rows, 32 if count <= 128 else 64, 256, 4


@torch.library.custom_op("quire::product", mutates_args=())
def product(tokens: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """(…, inputs) times (outputs, inputs): (…, outputs)."""
    flat = tokens.reshape(-1, tokens.shape[-1]).contiguous()
    weight = weight if weight.stride(1) == 1 else weight.contiguous()  # on a CPU weights are transposed
    count, outputs = len(flat), len(weight)
    out = tokens.new_empty(*tokens.shape[:-1], outputs)
    rows, columns, depth_bytes, warps = tile_of(count, outputs)
    inputs, depth = flat.shape[1], depth_bytes // tokens.element_size()
    multiply[(triton.cdiv(outputs, columns), triton.cdiv(count, rows))](
        flat, weight, weight if bias is None else bias, out, count, outputs, inputs, weight.stride(0),
        rows, columns, depth, inputs % depth == 0, bias is not None, num_warps=warps, num_stages=4,
    )  # fmt: skip
    return out


@product.register_fake
def _(tokens: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    del bias
    return tokens.new_empty(*tokens.shape[:-1], len(weight))
