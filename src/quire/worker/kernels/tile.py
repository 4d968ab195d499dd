"""Functions that kernels share: where tokens lie, what a query sees, and one tile of attention.

Parameters without a type are tensors or pointers: annotations mean something to the compiler. `shape` is a `Shape`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
"""The interpreter multiplies the bits of bf16 as if they were integers."""
LOG2_E = tl.constexpr(1.4426950408889634)
LARGEST_EIGHT = tl.constexpr(torch.finfo(torch.float8_e4m3fn).max)
LARGEST_SIXTEEN = tl.constexpr(torch.finfo(torch.float16).max)


@triton.jit
def token_addresses(table, tokens, there, shape: tl.constexpr):
    """The page of each token, in granules."""
    column = tokens // shape.page_tokens
    if shape.ring_columns > 0:
        wrapped = shape.sink_columns + (column - shape.sink_columns) % shape.ring_columns
        column = tl.where(column < shape.sink_columns, column, wrapped)
    return tl.load(table + column, mask=there, other=0)


@triton.jit
def load_tokens(part, addresses, slots, there, part_shape: tl.constexpr, all_there: tl.constexpr):
    """(token, number) of one head; 0 where there is no token: NaN times 0 would reach a result."""
    number = tl.arange(0, part_shape.padded)
    places = part + (addresses.to(tl.int64) * part_shape.granule + slots * part_shape.step)[:, None] + number[None, :]
    if part_shape.width < part_shape.padded:
        return tl.load(places, mask=there[:, None] & (number < part_shape.width)[None, :], other=0.0)
    if all_there:
        return tl.load(places)
    return tl.load(places, mask=there[:, None], other=0.0)


@triton.jit
def rescale(numbers, scales, addresses, slots, there, part_shape: tl.constexpr, count: tl.constexpr):
    """Multiplies `count` tokens in 8 bits by the scales of their groups of numbers."""
    groups: tl.constexpr = part_shape.padded // part_shape.group_numbers
    group = tl.arange(0, groups)
    places = addresses.to(tl.int64) * part_shape.scale_granule + slots * part_shape.scale_step
    mask = there[:, None] & (group < part_shape.groups)[None, :]
    factors = tl.load(scales + places[:, None] + group[None, :], mask=mask, other=0.0)
    cut = tl.reshape(numbers.to(tl.float32), [count, groups, part_shape.group_numbers])
    return tl.reshape(cut * factors[:, :, None], [count, part_shape.padded])


@triton.jit
def to_eight(numbers):
    """Clamps to the range of 8 bits, and rounds for Triton's interpreter, which loses a carry when it does."""
    numbers = tl.minimum(tl.maximum(numbers, -LARGEST_EIGHT), LARGEST_EIGHT)
    if INTERPRETED:
        bits = numbers.to(tl.int32, bitcast=True)
        normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000).to(tl.float32, bitcast=True)
        numbers = tl.where(tl.abs(numbers) < 2**-6, (numbers + 24576.0) - 24576.0, normal)
    return numbers


@triton.jit
def for_eight(numbers):
    """bf16 queries over 8-bit keys as fp16: the hardware converts 8 bits to fp16 directly, to bf16 only in steps."""
    if numbers.dtype == tl.bfloat16:
        bounded = tl.minimum(tl.maximum(numbers.to(tl.float32), -LARGEST_SIXTEEN), LARGEST_SIXTEEN)
        numbers = bounded.to(tl.float16)
    return numbers


@triton.jit
def load_numbers(rows, there, part_shape: tl.constexpr):
    """(row, number) from where each row begins."""
    number = tl.arange(0, part_shape.padded)
    mask = there[:, None] & (number < part_shape.width)[None, :]
    return tl.load(rows[:, None] + number[None, :], mask=mask, other=0.0)


@triton.jit
def sees(positions, tokens, shape: tl.constexpr):
    """(query, token): by causality and the kind's rule."""
    seen = tokens[None, :] <= positions[:, None]
    if shape.chunk > 0:
        seen = seen & (tokens[None, :] >= (positions // shape.chunk * shape.chunk)[:, None])
    elif shape.window > 0:
        near = tokens[None, :] > positions[:, None] - shape.window
        seen = seen & (near | (tokens[None, :] < shape.sinks))
    return seen


@triton.jit
def dot(a, b, accumulator):
    tl.static_assert(a.dtype == b.dtype, "a GPU multiplies numbers of one type")
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), accumulator, input_precision="ieee")
    return tl.dot(a, b, accumulator, input_precision="ieee")


@triton.jit
def soften(scores, scale, softcap, shape: tl.constexpr):
    """With a soft cap: scores times the scale, bounded by the cap. Without: `mix_tile` scales."""
    if shape.has_softcap:
        twice = tl.minimum(2 * scores * scale / softcap, 40.0)
        scores = softcap - 2 * softcap / (tl.exp(twice) + 1)
    return scores


@triton.jit
def slope_by_distance(slope, positions, tokens, factor):
    """(query, token): what scores lose with distance, before `mix_tile` multiplies them by `factor`."""
    distance = (tokens[None, :] - positions[:, None]).to(tl.float32)
    return distance * (slope * LOG2_E / factor)[:, None]


@triton.jit
def mix_tile(state, scores, factor, values, some_see_nothing: tl.constexpr):
    """Adds a tile to the state: (greatest exponent, sum of weights, weighted sum of values) of each query.

    Weights are 2 to the power of scores × factor.
    """
    peak, total, mixed = state
    peak, total, weights, shrink = weigh(peak, total, scores, factor, some_see_nothing)
    mixed = dot(weights.to(values.dtype), values, mixed * shrink[:, None])
    return peak, total, mixed


@triton.jit
def weigh(peak, total, scores, factor, some_see_nothing: tl.constexpr):
    """The new greatest exponent and sum, the tile's weights, and the factor of earlier weights."""
    new_peak = tl.maximum(peak, tl.max(scores, 1) * factor)
    base = new_peak
    if some_see_nothing:
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    weights = tl.exp2(scores * factor - base[:, None])
    shrink = tl.exp2(peak - base)
    return new_peak, total * shrink + tl.sum(weights, 1), weights, shrink


@triton.jit
def add_sink(state, logit):
    """Adds a token that is always seen and has no value."""
    peak, total, mixed = state
    exponent = logit.to(tl.float32) * LOG2_E
    new_peak = tl.maximum(peak, exponent)
    shrink = tl.exp2(peak - new_peak)
    return new_peak, total * shrink + tl.exp2(exponent - new_peak), mixed * shrink[:, None]


@triton.jit
def store_rows(out, state, places, asks, part_shape: tl.constexpr):
    """Stores weighted means of values; 0 for a query that saw nothing."""
    _, total, mixed = state
    number = tl.arange(0, part_shape.padded)
    result = mixed / tl.where(total > 0, total, 1.0)[:, None]
    there = asks[:, None] & (number < part_shape.width)[None, :]
    tl.store(out + places[:, None] + number[None, :], result.to(out.dtype.element_ty), mask=there)
