"""Products of a few tens of tokens with one packed weight: its inputs are divided among programs.

A narrow weight has too few blocks of outputs to keep all processors reading. Each program sums its part of the inputs;
the last one of a block to end adds the parts in order, so that a result does not depend on which that was.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from quire.worker.kernels.experts import Product
from quire.worker.kernels.few import late_of
from quire.worker.kernels.octets import (
    AT_END,
    EACH_STEP,
    NIBBLES,
    as_bits,
    read_packed,
    read_quickly,
    reads_quickly,
    scale_of,
)
from quire.worker.kernels.tile import dot

SPLIT_ROWS = 32
"""Tokens, up to which it is used."""
COLUMNS = 64
MOST_PARTS, LEAST_INPUTS, MOST_PROGRAMS = 8, 1024, 1024
"""Parts of the inputs, inputs of a part, and programs in all."""
LOCKS = 1 << 14


class Form(NamedTuple):
    """What the kernel is compiled for; the last eight as `octets.py` reads them."""

    rows: int
    columns: int
    depth: int
    parts: int
    is_quick: bool
    is_even: bool
    kind: int
    scale: int
    block_rows: int
    block_inputs: int
    has_minimums: bool
    has_factors: bool
    inputs: int
    late: int


@triton.jit
def multiply_part(given, codes, sides, sizes, form: tl.constexpr):
    """Grid (block of outputs, part of the inputs). `given`: tokens, results, sums of parts, and for each block how many
    parts have ended: 0 before and after; `sides`: scales, minimums and factors."""
    tokens, out, sums, ended = given
    count, outputs, inputs, groups = sizes
    block, part = tl.program_id(0), tl.program_id(1)
    parts: tl.constexpr = form.parts
    row, number = tl.arange(0, form.rows), tl.arange(0, form.depth)
    column = block * form.columns + tl.arange(0, form.columns)
    line = tl.minimum(column, outputs - 1).to(tl.int64)
    scaled = line // form.block_rows * groups
    steps = tl.cdiv(inputs, form.depth * form.parts)
    begin = part * steps * form.depth
    total = tl.full([form.rows, form.columns], 0.0, tl.float32)
    left = tokens + tl.where(row < count, row, 0)[:, None] * inputs + number[None, :]
    for first in tl.range(begin, tl.minimum(begin + steps * form.depth, inputs), form.depth):
        if form.is_even:
            read = tl.load(left + first)
        else:
            read = tl.load(left + first, mask=(first + number < inputs)[None, :], other=0.0)
        if form.is_quick:
            own = read_quickly((codes, sides), (line, scaled, inputs), first, form, form.columns).to(read.dtype)
        else:
            own = read_packed((codes, sides), (line, scaled, inputs), first, form, form.columns).to(read.dtype)
        if form.late == EACH_STEP:
            scale = scale_of(sides[0], scaled, first, form.scale, form.block_inputs)
            none = tl.full([form.rows, form.columns], 0.0, tl.float32)
            total += dot(read, tl.trans(own), none) * scale[None, :]
        else:
            total = dot(read, tl.trans(own), total)
    places = row[:, None].to(tl.int64) * outputs + column[None, :]
    there = (row < count)[:, None] & (column < outputs)[None, :]
    if form.parts > 1:
        tl.store(sums + part * count * outputs + places, total, mask=there)
        tl.debug_barrier()
        if tl.atomic_add(ended + block, 1, sem="acq_rel") == form.parts - 1:
            total = tl.full([form.rows, form.columns], 0.0, tl.float32)
            for one in tl.static_range(parts):
                own = sums + one * count * outputs + places
                total += tl.load(own, mask=there, other=0.0, cache_modifier=".cg")
            _store(total, (out, places, there), (sides, scaled, line), form)
            tl.store(ended + block, 0)
    else:
        _store(total, (out, places, there), (sides, scaled, line), form)


@triton.jit
def _store(total, target, weights, form: tl.constexpr):
    out, places, there = target
    sides, scaled, line = weights
    if form.late == AT_END:
        total *= scale_of(sides[0], scaled, 0, form.scale, form.block_inputs)[None, :]
    if form.has_factors:
        total *= tl.load(sides[2] + line)[None, :]
    tl.store(out + places, total.to(out.dtype.element_ty), mask=there)


def multiply_split(tokens: torch.Tensor, product: Product) -> torch.Tensor:
    """(token, in) times (out, in), of up to `SPLIT_ROWS` tokens."""
    assert product.sides is not None
    (count, inputs), outputs = tokens.shape, product.weight.shape[0]
    codes, *sides = map(as_bits, (product.weight, *product.sides))
    form, stages = form_of(product, count, tokens.dtype)
    out, blocks = tokens.new_empty(count, outputs), triton.cdiv(outputs, form.columns)
    sums = tokens.new_empty(form.parts * count * outputs, dtype=torch.float32) if form.parts > 1 else out
    given = (tokens, out, sums, _ended(tokens.device))
    sizes = (count, outputs, inputs, sides[0].shape[-1])
    multiply_part[(blocks, form.parts)](given, codes, tuple(sides), sizes, form, num_warps=4, num_stages=stages)
    return out


def form_of(product: Product, count: int, dtype: torch.dtype) -> tuple[Form, int]:
    """And stages: the fastest on an H200 at the shapes of Llama-3.1-8B; fp32, which matrix units do not multiply
    exactly, in small tiles."""
    facts, outputs, is_exact = product.facts, product.weight.shape[0], dtype is torch.float32
    inputs, has_nibbles = facts[-1], facts[0] in NIBBLES
    columns, depth, stages = (32, 32, 2) if is_exact else (COLUMNS, 256, 3) if has_nibbles else (COLUMNS, 128, 4)
    columns = min(columns, max(16, triton.next_power_of_2(outputs)))
    is_quick = reads_quickly(facts, depth, dtype)
    late = 0 if is_quick else late_of(facts, depth)
    parts, blocks = 1, triton.cdiv(outputs, columns)
    while parts < MOST_PARTS and inputs >= 2 * parts * LEAST_INPUTS and 2 * parts * blocks <= MOST_PROGRAMS:
        parts *= 2
    rows = 16 if count <= 16 else SPLIT_ROWS
    form = Form(rows, columns, depth, parts, is_quick, inputs % depth == 0, *facts, late)  # type: ignore[arg-type, call-arg]
    return form, stages


@cache
def _ended(device: torch.device) -> torch.Tensor:
    """Products of one device follow one another, and each leaves zeros."""
    return torch.zeros(LOCKS, dtype=torch.int32, device=device)
