"""Products of tokens and a packed weight (`weights/packed.py`): codes are read and dequantised tile by tile.

    dense     (token, in) · (out, in)              one weight
    grouped   (pair, in) · (expert, out, in)       pairs of token and expert, sorted by expert

A weight is dequantised to the data type of the tokens, as the reference does it, and never written to memory. The same
kernel multiplies experts: its tiles of rows belong to one expert each, and which ones there are is computed on the
device. As many tiles are launched as there can be; those without rows return at once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from quire.worker.kernels.tile import dot

INT8, INT4, SINT4, FP8, FP4 = (tl.constexpr(number) for number in range(5))
KINDS = ("int8", "int4", "sint4", "fp8", "fp4")
"""By number, as kernels know them."""
PLAIN, E4M3, E8M0 = (tl.constexpr(number) for number in range(3))
SCALES = {torch.float8_e4m3fn: 1, torch.float8_e8m0fnu: 2}
FEW_ROWS, MANY_ROWS, OUTPUTS, DEPTH = 16, 64, 64, 64


@triton.jit
def _e4m3(bits):
    """8 bits as fp32, also numbers below the least normal one."""
    wide = bits.to(tl.int32)
    exponent, mantissa = (wide >> 3) & 15, wide & 7
    normal = (((exponent + 120) << 23) | (mantissa << 20)).to(tl.float32, bitcast=True)
    size = tl.where(exponent == 0, mantissa.to(tl.float32) * 0.001953125, normal)
    return tl.where(wide < 128, size, -size)


@triton.jit
def _e2m1(nibble):
    size = nibble & 7
    doubled = tl.where(size < 4, size, (2 + (size & 1)) << tl.maximum((size >> 1) - 1, 0))
    half = doubled.to(tl.float32) * 0.5
    return tl.where(nibble < 8, half, -half)


@triton.jit
def _values(codes, row, column, mask, kind: tl.constexpr):
    """Codes of rows (pointers to their beginnings) and columns, as fp32."""
    if kind == INT8:
        return tl.load(codes + row + column, mask=mask, other=0).to(tl.float32)
    if kind == FP8:
        return _e4m3(tl.load(codes + row + column, mask=mask, other=0))
    octet = tl.load(codes + row + column // 2, mask=mask, other=0).to(tl.int32)
    nibble = (octet >> ((column & 1) * 4)) & 15
    if kind == FP4:
        return _e2m1(nibble)
    return nibble.to(tl.float32) - (8.0 if kind == SINT4 else 0.0)


@triton.jit
def _scales(scales, place, mask, sort: tl.constexpr):
    if sort == PLAIN:
        return tl.load(scales + place, mask=mask, other=0.0).to(tl.float32)
    bits = tl.load(scales + place, mask=mask, other=0)
    if sort == E4M3:
        return _e4m3(bits)
    return (bits.to(tl.int32) << 23).to(tl.float32, bitcast=True)


class Form(NamedTuple):
    """What a kernel is compiled for: kind of codes and of scales, the block of a scale, and a program's tile."""

    kind: int
    sort: int
    block_rows: int
    block_columns: int
    has_minimums: bool
    has_factors: bool
    is_grouped: bool
    rows: int
    columns: int = OUTPUTS
    depth: int = DEPTH


@triton.jit
def multiply_packed(given, weights, tiles, sizes, form: tl.constexpr):
    """Grid (block of outputs, tile of tokens). `given`: tokens and results; `weights`: codes, scales, minimums and
    factors; `tiles`: expert, begin and end of each; `sizes`: tokens, outputs, inputs, scales along outputs and along
    inputs, bytes of a row of codes."""
    tokens, out = given
    codes, scales, minimums, factors = weights
    experts, begins, ends = tiles
    count, outputs, inputs, blocks, groups, row_bytes = sizes
    tile = tl.program_id(1)
    expert, begin, end = tl.full((), 0, tl.int64), tile * form.rows, count
    if form.is_grouped:
        expert, begin, end = tl.load(experts + tile).to(tl.int64), tl.load(begins + tile), tl.load(ends + tile)
    if begin < end:
        row = begin + tl.arange(0, form.rows)
        column = tl.program_id(0) * form.columns + tl.arange(0, form.columns)
        number = tl.arange(0, form.depth)
        is_row, is_column = (row < end)[:, None], (column < outputs)[:, None]
        left = row[:, None].to(tl.int64) * inputs
        right = (expert * outputs + column)[:, None].to(tl.int64) * row_bytes
        scaled = (expert * blocks + column // form.block_rows)[:, None].to(tl.int64) * groups
        total = tl.full([form.rows, form.columns], 0.0, tl.float32)
        for first in tl.range(0, inputs, form.depth):
            place = (first + number)[None, :]
            there = place < inputs
            read = tl.load(tokens + left + place, mask=is_row & there, other=0.0)
            weight = _values(codes, right, place, is_column & there, form.kind)
            scale = scaled + place // form.block_columns
            weight = weight * _scales(scales, scale, is_column & there, form.sort)
            if form.has_minimums:
                weight += tl.load(minimums + scale, mask=is_column & there, other=0.0).to(tl.float32)
            total = dot(read, tl.trans(weight.to(read.dtype)), total)
        if form.has_factors:
            total *= tl.load(factors + expert * outputs + column, mask=column < outputs, other=0.0)[None, :]
        places = out + row[:, None].to(tl.int64) * outputs + column[None, :]
        tl.store(places, total.to(out.dtype.element_ty), mask=is_row & (column < outputs)[None, :])


@torch.library.custom_op("quire::packed_product", mutates_args=())
def product(
    tokens: torch.Tensor, weights: list[torch.Tensor], facts: list[int], ends: torch.Tensor | None
) -> torch.Tensor:
    """(…, in) times (out, in), or (pair, in) times (expert, out, in) with `ends`. `weights`: codes, scales, minimums
    and factors, scales in place of those that are absent. `facts`: kind of codes, block of a scale, and whether there
    are minimums and factors."""
    codes, scales, *sides = weights
    flat, sort = tokens.reshape(-1, tokens.shape[-1]).contiguous(), SCALES.get(scales.dtype, 0)
    outputs, (count, inputs) = codes.shape[-2], flat.shape
    out = tokens.new_empty(*tokens.shape[:-1], outputs)
    rows = FEW_ROWS if count <= FEW_ROWS * (1 if ends is None else len(ends)) else MANY_ROWS
    kind, block_rows, block_columns, *has = facts
    form = Form(kind, sort, block_rows, block_columns, bool(has[0]), bool(has[1]), ends is not None, rows)
    own = (flat, flat, flat) if ends is None else tiles(ends, count, rows)
    number = triton.cdiv(count, rows) if ends is None else len(own[0])
    read = [one.view(torch.uint8) if one.dtype in SCALES else one for one in (scales, *sides)]
    sizes = (count, outputs, inputs, scales.shape[-2], scales.shape[-1], codes.shape[-1])
    grid = (triton.cdiv(outputs, OUTPUTS), number)
    multiply_packed[grid]((flat, out), (codes, *read), own, sizes, form, num_warps=4)
    return out


@product.register_fake
def _(tokens: torch.Tensor, weights: list[torch.Tensor], facts: list[int], ends: torch.Tensor | None) -> torch.Tensor:
    del facts, ends
    return tokens.new_empty(*tokens.shape[:-1], weights[0].shape[-2])


def tiles(ends: torch.Tensor, count: int, rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The expert of each tile, its first row, and the end of the expert's rows. As many as there can be; those that are
    none begin at their end."""
    begins = torch.cat([ends.new_zeros(1), ends[:-1]])
    lasts = torch.cumsum((ends - begins + rows - 1) // rows, 0)
    most = triton.cdiv(count, rows) + len(ends)
    tile = torch.arange(most, device=ends.device)
    expert = torch.searchsorted(lasts, tile, right=True).clamp(max=len(ends) - 1)
    first = torch.cat([lasts.new_zeros(1), lasts[:-1]])
    begin = begins[expert] + (tile - first[expert]) * rows
    return expert.int(), begin.int(), ends[expert].int()
