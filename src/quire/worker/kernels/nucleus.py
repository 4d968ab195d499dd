"""The least logit that top_k and top_p let each row keep, without sorting and without waiting for the device.

A logit's distance from the greatest, read as an integer, has the order of the distances themselves. So the threshold is
found three bits at a time: each pass over the row sums the weights of the tokens in each of eight ranges.

    distances   0 ├──────┼──────┼──────┼─ … ─┤ 2³¹       the range in which the wanted weight is reached
                         ├─┼─┼─┼─┼─┼─┼─┤                 … becomes the next range

top_k weighs every token as 1; top_p weighs by probability, among the tokens that top_k kept.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK_TOKENS = 2048
INFINITE = tl.constexpr(0x7F800000)
"""The distance of a logit of −∞."""


@triton.jit
def distances(row, first, tokens, block: tl.constexpr):
    """(scaled logits, their distances); beyond the vocabulary, greater than any other."""
    token = first + tl.arange(0, block)
    scaled = tl.load(row + token, mask=token < tokens, other=float("-inf"))
    distance = scaled.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return scaled, tl.where(token < tokens, distance, 0x7FFFFFFF)


@triton.jit
def furthest(row, tokens, limit, target, is_by_chance: tl.constexpr, block: tl.constexpr):
    """The greatest distance, `limit` at most, such that all smaller ones together weigh less than `target`."""
    digits = tl.arange(0, 8)
    found = tl.full((), 0, tl.int32)
    before = tl.full((), 0.0, tl.float64)
    for turn in range(11):
        shift = tl.maximum(28 - 3 * turn, 0)
        weights = tl.zeros((block, 8), tl.float64)
        for first in range(0, tokens, block):
            scaled, distance = distances(row, first, tokens, block)
            digit = tl.where((distance >= found) & (distance <= limit), (distance - found) >> shift, -1)
            weight = tl.exp(scaled) if is_by_chance else tl.full((block,), 1.0, tl.float32)
            weights += tl.where(digit[:, None] == digits[None, :], weight[:, None], 0.0).to(tl.float64)
        each = tl.sum(weights, 0)
        nearer = before + tl.sum(tl.where(digits[None, :] < digits[:, None], each[None, :], 0.0), 1)
        is_within = found.to(tl.int64) + (digits.to(tl.int64) << shift) <= limit
        chosen = tl.max(tl.where(is_within & (nearer < target), digits, 0), 0)
        before = tl.sum(tl.where(digits == chosen, nearer, 0.0), 0)
        found += chosen << shift
    return found


@triton.jit
def weigh(row, tokens, limit, block: tl.constexpr):
    total = tl.zeros((block,), tl.float64)
    for first in range(0, tokens, block):
        scaled, distance = distances(row, first, tokens, block)
        total += tl.where(distance <= limit, tl.exp(scaled), 0.0).to(tl.float64)
    return tl.sum(total, 0)


@triton.jit
def keep(scaled, top_k, top_p, least, row_stride, tokens, block: tl.constexpr):
    """Grid (row,)."""
    row = scaled + tl.program_id(0).to(tl.int64) * row_stride
    limit = tl.full((), INFINITE, tl.int32)
    most = tl.load(top_k + tl.program_id(0))
    if most > 0:
        limit = furthest(row, tokens, limit, tl.minimum(most, tokens), False, block)
    share = tl.load(top_p + tl.program_id(0))
    if share < 1:
        limit = furthest(row, tokens, limit, share * weigh(row, tokens, limit, block), True, block)
    tl.store(least + tl.program_id(0), -limit.to(tl.float32, bitcast=True))


def least_kept(scaled: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """(row, 1), of (row, vocabulary) in fp32 with 0 as its greatest; `top_k` and `top_p` in fp64, 0 and 1: no bound."""
    rows, tokens = scaled.shape
    least = torch.empty(rows, 1, dtype=scaled.dtype, device=scaled.device)
    keep[(rows,)](scaled, top_k, top_p, least, scaled.stride(0), tokens, BLOCK_TOKENS, num_warps=16)
    return least
