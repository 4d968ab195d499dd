"""Products with a packed weight off the matrix units: of a few tokens, and of so many that the weight is written out.

A few tokens would leave matrix units idle for most of their rows: numbers are multiplied where they were dequantised,
and sums are kept for each output until its last input. Whole numbers in groups are summed as they are, and each group's
sum is scaled (`multiply_groups`). With many tokens dequantising costs less than it saves.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from quire.worker.kernels.octets import (
    AT_END,
    EACH_STEP,
    FP8,
    INT4,
    PLAIN,
    SINT4,
    as_bits,
    biased_halves,
    by_hardware,
    read_packed,
    scale_of,
)

FEW_ROWS = 2
"""Tokens, up to which it is used. Four tokens take longer than with a bf16 weight."""
PART_NUMBERS = 1 << 26
"""Numbers that are written out at a time."""
BLOCK = 8, 512
"""Outputs and inputs that a program dequantises."""


class Cut(NamedTuple):
    """How outputs and inputs are cut."""

    columns: int
    depth: int
    warps: int = 4
    stages: int = 1


class FewForm(NamedTuple):
    """What the kernel is compiled for; the last eight as `octets.py` reads them."""

    rows: int
    columns: int
    depth: int
    stages: int
    has_bias: bool
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
def multiply_few(given, codes, sides, sizes, form: tl.constexpr):
    """Grid (block of outputs,). `given`: tokens, results and bias; `sides`: scales, minimums and factors."""
    tokens = given[0]
    count, outputs, inputs, groups = sizes
    rows: tl.constexpr = form.rows
    row, number = tl.arange(0, rows), tl.arange(0, form.depth)
    column = tl.program_id(0) * form.columns + tl.arange(0, form.columns)
    line = tl.minimum(column, outputs - 1).to(tl.int64)
    scaled = line // form.block_rows * groups
    total = tl.full([form.columns, rows], 0.0, tl.float32)
    for first in tl.range(0, inputs, form.depth, num_stages=form.stages):
        if form.kind == FP8 and form.late > 0:
            part = by_hardware(codes, line, first, inputs, form)
        else:
            part = read_packed((codes, sides), (line, scaled, inputs), first, form, form.columns).to(tl.float32)
        for one in tl.static_range(rows):
            own = tokens + tl.minimum(one, count - 1) * inputs + first + number
            read = tl.load(own, mask=first + number < inputs, other=0.0).to(tl.float32)
            found = tl.sum(part * read[None, :], 1)
            if form.late == EACH_STEP:
                found *= scale_of(sides[0], scaled, first, form.scale, form.block_inputs)
            total += tl.where(row == one, 1.0, 0.0)[None, :] * found[:, None]
    if form.late == AT_END:
        total *= scale_of(sides[0], scaled, 0, form.scale, form.block_inputs)[:, None]
    _store(total, (given, sides, line), (row, column, count, outputs), form)


@triton.jit
def _store(total, sources, places, form: tl.constexpr):
    given, sides, line = sources
    row, column, count, outputs = places
    _, out, bias = given
    if form.has_factors:
        total *= tl.load(sides[2] + line)[:, None]
    if form.has_bias:
        total += tl.load(bias + line).to(tl.float32)[:, None]
    where = out + row[None, :].to(tl.int64) * outputs + column[:, None]
    tl.store(where, total.to(out.dtype.element_ty), mask=(row < count)[None, :] & (column < outputs)[:, None])


@triton.jit
def multiply_groups(given, codes, sides, sizes, form: tl.constexpr):
    """The same for nibbles with a scale, and perhaps a minimum, for each group of inputs: of a token at a time, the sum
    of numbers and inputs, and the sum of inputs."""
    tokens = given[0]
    count, outputs, inputs, groups = sizes
    halves: tl.constexpr = form.depth // 2
    cut: tl.constexpr = form.depth // form.block_inputs
    offset: tl.constexpr = 136.0 if form.kind == SINT4 else 128.0
    rows: tl.constexpr = form.rows
    half, group = tl.arange(0, halves), tl.arange(0, cut)
    column = tl.program_id(0) * form.columns + tl.arange(0, form.columns)
    line = tl.minimum(column, outputs - 1).to(tl.int64)
    scaled = line // form.block_rows * groups
    row = tl.arange(0, rows)
    total = tl.full([form.columns, rows], 0.0, tl.float32)
    for first in tl.range(0, inputs, form.depth, num_stages=form.stages):
        there = first // 2 + half < inputs // 2
        place = (line * (inputs // 2))[:, None] + (first // 2 + half)[None, :]
        low, high = biased_halves(tl.load(codes + place, mask=there[None, :], other=0))
        number = (first // form.block_inputs + group)[None, :]
        own, is_group = scaled[:, None] + number, number < groups
        scale = tl.load(sides[0] + own, mask=is_group, other=0.0).to(tl.float32)
        if form.has_minimums:
            least = tl.load(sides[1] + own, mask=is_group, other=0.0).to(tl.float32) - offset * scale
        else:
            least = -offset * scale
        for one in tl.static_range(rows):
            both = tokens + tl.minimum(one, count - 1) * inputs + first + 2 * half[:, None] + tl.arange(0, 2)[None, :]
            even, odd = tl.split(tl.load(both, mask=there[:, None], other=0.0).to(tl.float32))
            found = tl.reshape(low * even[None, :] + high * odd[None, :], [form.columns, cut, form.block_inputs // 2])
            plain = tl.sum(tl.reshape(even + odd, [cut, form.block_inputs // 2]), 1)
            part = tl.sum(tl.sum(found, 2) * scale + least * plain[None, :], 1)
            total += tl.where(row == one, 1.0, 0.0)[None, :] * part[:, None]
    _store(total, (given, sides, line), (row, column, count, outputs), form)


def sums_groups(facts: tuple[int, ...], depth: int) -> bool:
    """Whether `multiply_groups` multiplies such a weight."""
    kind, scale, _, block, *_ = facts
    is_whole = kind in (INT4.value, SINT4.value) and scale == PLAIN.value
    return is_whole and block >= 16 and block & (block - 1) == 0 and depth % block == 0


def late_of(facts: tuple[int, ...], depth: int) -> int:
    """Whether sums are scaled, and not numbers: where one scale is for all inputs that are summed."""
    *_, block, has_minimums, _, inputs = facts
    if has_minimums:
        return 0
    return AT_END.value if block >= inputs else EACH_STEP.value if block % depth == 0 else 0


def few(
    tokens: torch.Tensor,
    weights: tuple[torch.Tensor, ...],
    facts: tuple[int, ...],
    bias: torch.Tensor | None,
    cut: Cut,
) -> torch.Tensor:
    """(token, in) times (out, in). `weights`: codes, scales, minimums and factors; `facts`: as `experts.Product`."""
    codes, *sides = map(as_bits, weights)
    (count, inputs), outputs = tokens.shape, codes.shape[0]
    out = tokens.new_empty(count, outputs)
    form = FewForm(
        triton.next_power_of_2(count), cut.columns, cut.depth, cut.stages, bias is not None, inputs % cut.depth == 0,
        *facts, late_of(facts, cut.depth),  # type: ignore[arg-type, call-arg]
    )  # fmt: skip
    sizes = (count, outputs, inputs, sides[0].shape[-1])
    given = (tokens, out, tokens if bias is None else bias)
    kernel = multiply_groups if sums_groups(facts, cut.depth) else multiply_few
    kernel[(triton.cdiv(outputs, cut.columns),)](given, codes, tuple(sides), sizes, form, num_warps=cut.warps)
    return out


@triton.jit
def write_numbers(weights, out, sizes, form: tl.constexpr):
    """Grid (block of outputs, block of inputs). `weights`: codes, scales, minimums and factors."""
    codes, scales, minimums, factors = weights
    outputs, inputs, groups = sizes
    column = tl.program_id(0) * form.columns + tl.arange(0, form.columns)
    line = tl.minimum(column, outputs - 1).to(tl.int64)
    first = tl.program_id(1) * form.depth
    scaled = line // form.block_rows * groups
    found = read_packed((codes, (scales, minimums, factors)), (line, scaled, inputs), first, form, form.columns)
    found = found.to(tl.float32)
    if form.has_factors:
        found *= tl.load(factors + line)[:, None]
    place = first + tl.arange(0, form.depth)
    there = (column < outputs)[:, None] & (place < inputs)[None, :]
    tl.store(out + line[:, None] * inputs + place[None, :], found.to(out.dtype.element_ty), mask=there)


def many(tokens: torch.Tensor, weights: tuple[torch.Tensor, ...], facts: tuple[int, ...]) -> torch.Tensor:
    """The same for many tokens: a part of the weight after another is written out and multiplied by torch."""
    codes, *sides = map(as_bits, weights)
    (count, inputs), outputs, rows = tokens.shape, codes.shape[0], facts[2]
    most = min(outputs, max(1, PART_NUMBERS // inputs // rows) * rows)
    out, numbers = tokens.new_empty(count, outputs), tokens.new_empty(most, inputs)
    columns, depth = BLOCK
    form = FewForm(1, columns, depth, 1, False, inputs % depth == 0, *facts, 0)  # type: ignore[arg-type, call-arg]
    for begin in range(0, outputs, most):
        size = min(most, outputs - begin)
        part = [codes[begin:], *(side[begin // rows :] for side in sides[:2]), sides[2][begin:]]
        grid = (triton.cdiv(size, columns), triton.cdiv(inputs, depth))
        write_numbers[grid](tuple(part), numbers, (size, inputs, sides[0].shape[-1]), form, num_warps=4)
        torch.mm(tokens, numbers[:size].T, out=out[:, begin : begin + size])
    return out
