"""Products of tokens and a packed weight (`weights/packed.py`): codes are read and dequantised tile by tile.

    dense     (token, in) · (out, in)              one weight
    grouped   (pair, in) · (expert, out, in)       pairs of token and expert, sorted by expert

A weight is dequantised to the data type of the tokens, as the reference does it, and never written to memory. The same
kernel multiplies experts: its tiles of rows belong to one expert each, and which ones there are is computed on the
device. As many tiles are launched as there can be; those without rows return at once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from quire.worker.kernels.tile import dot
from quire.worker.weights.packed import Codes, PackedWeight

INT8, INT4, SINT4, FP8, FP4 = (tl.constexpr(number) for number in range(5))
KINDS = {Codes.INT8: 0, Codes.INT4: 1, Codes.SINT4: 2, Codes.FP8: 3, Codes.FP4: 4}
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


@triton.jit
def multiply_packed(
    tokens, codes, scales, minimums, factors, out, experts, begins, ends, count, outputs, inputs, blocks, groups,
    row_bytes, block_rows: tl.constexpr, block_columns: tl.constexpr, kind: tl.constexpr, sort: tl.constexpr,
    has_minimums: tl.constexpr, has_factors: tl.constexpr, is_grouped: tl.constexpr, rows: tl.constexpr,
    columns: tl.constexpr, depth: tl.constexpr,
):  # fmt: skip
    """Grid (block of outputs, tile of tokens). `blocks`, `groups`: how many scales an expert has along outputs and
    inputs."""
    tile = tl.program_id(1)
    expert, begin, end = tl.full((), 0, tl.int64), tile * rows, count
    if is_grouped:
        expert, begin, end = tl.load(experts + tile).to(tl.int64), tl.load(begins + tile), tl.load(ends + tile)
    if begin < end:
        row = begin + tl.arange(0, rows)
        column = tl.program_id(0) * columns + tl.arange(0, columns)
        number = tl.arange(0, depth)
        is_row, is_column = (row < end)[:, None], (column < outputs)[:, None]
        left = row[:, None].to(tl.int64) * inputs
        right = (expert * outputs + column)[:, None].to(tl.int64) * row_bytes
        scaled = (expert * blocks + column // block_rows)[:, None].to(tl.int64) * groups
        total = tl.full([rows, columns], 0.0, tl.float32)
        for first in tl.range(0, inputs, depth):
            place = (first + number)[None, :]
            there = place < inputs
            given = tl.load(tokens + left + place, mask=is_row & there, other=0.0)
            weight = _values(codes, right, place, is_column & there, kind)
            scale = scaled + place // block_columns
            weight = weight * _scales(scales, scale, is_column & there, sort)
            if has_minimums:
                weight += tl.load(minimums + scale, mask=is_column & there, other=0.0).to(tl.float32)
            total = dot(given, tl.trans(weight.to(given.dtype)), total)
        if has_factors:
            total *= tl.load(factors + expert * outputs + column, mask=column < outputs, other=0.0)[None, :]
        places = out + row[:, None].to(tl.int64) * outputs + column[None, :]
        tl.store(places, total.to(out.dtype.element_ty), mask=is_row & (column < outputs)[None, :])


def packed_product(tokens: torch.Tensor, packed: PackedWeight, bias: torch.Tensor | None) -> torch.Tensor:
    """(…, in) times (out, in): (…, out). In place of `packed_linear.multiply`."""
    tokens = tokens if packed.order is None else tokens[..., packed.order]
    found: torch.Tensor = _product(tokens, *_given(packed), None)
    return found if bias is None else found + bias


def packed_grouped(tokens: torch.Tensor, packed: PackedWeight, ends: torch.Tensor) -> torch.Tensor:
    """(pair, in) times (expert, out, in): (pair, out). In place of `packed_experts.multiply_all`; `ends`: where each
    expert's pairs end."""
    if packed.order is not None:
        expert = torch.searchsorted(ends, torch.arange(len(tokens), device=tokens.device), right=True)
        tokens = torch.gather(tokens, 1, packed.order[expert].long())
    found: torch.Tensor = _product(tokens, *_given(packed), ends)
    return found


Given = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None, int, int, int]


def _given(packed: PackedWeight) -> Given:
    """Tensors as the kernel reads them, the kind, and the block of a scale."""
    octets = torch.uint8 if packed.kind is Codes.FP8 else packed.codes.dtype
    columns = packed.columns or packed.shape[-1]
    codes = packed.codes.view(octets).contiguous()
    return codes, packed.scales.contiguous(), packed.minimums, packed.factors, KINDS[packed.kind], packed.rows, columns


@torch.library.custom_op("quire::packed_product", mutates_args=())
def _product(
    tokens: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, minimums: torch.Tensor | None,
    factors: torch.Tensor | None, kind: int, block_rows: int, block_columns: int, ends: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    flat, sort = tokens.reshape(-1, tokens.shape[-1]).contiguous(), SCALES.get(scales.dtype, 0)
    outputs, (count, inputs) = codes.shape[-2], flat.shape
    out = tokens.new_empty(*tokens.shape[:-1], outputs)
    rows = FEW_ROWS if count <= FEW_ROWS * (1 if ends is None else len(ends)) else MANY_ROWS
    own = (flat, flat, flat) if ends is None else tiles(ends, count, rows)
    number = triton.cdiv(count, rows) if ends is None else len(own[0])
    read = scales.view(torch.uint8) if sort else scales
    multiply_packed[(triton.cdiv(outputs, OUTPUTS), number)](
        flat, codes, read, read if minimums is None else minimums.contiguous(), flat if factors is None else factors,
        out, *own, count, outputs, inputs, scales.shape[-2], scales.shape[-1], codes.shape[-1],
        block_rows, block_columns, kind, sort, minimums is not None, factors is not None, ends is not None,
        rows, OUTPUTS, DEPTH, num_warps=4,
    )  # fmt: skip
    return out


@_product.register_fake
def _(
    tokens: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, minimums: torch.Tensor | None,
    factors: torch.Tensor | None, kind: int, block_rows: int, block_columns: int, ends: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    del scales, minimums, factors, kind, block_rows, block_columns, ends
    return tokens.new_empty(*tokens.shape[:-1], codes.shape[-2])


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
