"""Which expert computes which token: the likeliest experts of each token, and pairs of token and expert by expert.

    logits ──route──▶ (token, chosen)  experts, shares
    pairs  ──sort───▶ slots: each expert's pairs one after another, in whole tiles

    order     0 4 9 ·   2 3 ·  ·   5 6 7 8   1 · · ·      pair of each slot; · : none (the number of pairs)
    experts   0         1          2         4    −1      expert of each tile; −1: none

Sizes depend on the number of tokens alone and nothing waits for the device, so steps can be recorded. A pair keeps its
place among its expert's pairs, whatever runs first.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

CHUNK = 2048
"""Pairs that one program counts."""
ALONE = 4096
"""Up to so many pairs each program counts all of them itself: one launch."""
SOFTMAX, SOFTMAX_OF_CHOSEN = (tl.constexpr(number) for number in range(2))


class Slots(NamedTuple):
    """Where pairs lie: see above."""

    order: torch.Tensor
    experts: torch.Tensor
    rows: int
    """Slots of a tile."""


class Routing(NamedTuple):
    """What `route` is compiled for."""

    bins: int
    most: int
    """Experts of a token, up to a power of two."""
    rule: int
    is_scaled: bool
    has_bias: bool


class Sorting(NamedTuple):
    """What `sort_pairs` is compiled for."""

    bins: int
    """The last is nobody's."""
    chunk: int
    """Pairs counted at a time."""
    rows: int
    """Slots of a tile."""
    is_counted: bool
    """Pairs were counted before."""


@triton.jit
def route(logits, bias, found, sizes, form: tl.constexpr):
    """Grid (token,). `found`: experts and shares of each. The least of equal experts comes first."""
    experts, shares = found
    count, each = sizes
    token, bin = tl.program_id(0).to(tl.int64), tl.arange(0, form.bins)
    values = tl.load(logits + token * count + bin, mask=bin < count, other=float("-inf")).to(tl.float32)
    if form.has_bias:
        values += tl.load(bias + bin, mask=bin < count, other=0.0).to(tl.float32)
    peak = tl.max(values, 0)
    total = tl.sum(tl.exp(values - peak), 0)
    place = tl.arange(0, form.most)
    picked, best = tl.full([form.most], 0, tl.int32), tl.full([form.most], float("-inf"), tl.float32)
    for turn in range(each):
        most = tl.max(values, 0)
        which = tl.min(tl.where(values == most, bin, form.bins - 1), 0)
        picked, best = tl.where(place == turn, which, picked), tl.where(place == turn, most, best)
        values = tl.where(bin == which, float("-inf"), values)
    sizes_of = tl.exp(best - peak)
    if form.is_scaled or form.rule == SOFTMAX_OF_CHOSEN:
        total = tl.sum(sizes_of, 0)
    there = place < each
    tl.store(experts + token * each + place, picked, mask=there)
    tl.store(shares + token * each + place, (sizes_of / total).to(shares.dtype.element_ty), mask=there)


@triton.jit
def _count(chosen, first, count, bins: tl.constexpr, chunk: tl.constexpr):
    place = first + tl.arange(0, chunk)
    own = tl.load(chosen + place, mask=place < count, other=bins - 1).to(tl.int32)
    return tl.histogram(own, bins)


@triton.jit
def count_pairs(chosen, counts, count, bins: tl.constexpr, chunk: tl.constexpr):
    """Grid (chunk,): pairs of each expert."""
    part = tl.program_id(0)
    tl.store(counts + part * bins + tl.arange(0, bins), _count(chosen, part * chunk, count, bins, chunk))


@triton.jit
def sort_pairs(chosen, slots, counts, sizes, form: tl.constexpr):
    """Grid (expert and one more, part of the pairs). The last program marks the tiles that are none."""
    order, experts = slots
    count, number, tiles, parts = sizes
    rows: tl.constexpr = form.rows
    own, part, bin = tl.program_id(0), tl.program_id(1), tl.arange(0, form.bins)
    totals, earlier = tl.full([form.bins], 0, tl.int32), tl.full([form.bins], 0, tl.int32)
    for one in range(parts):
        if form.is_counted:
            here = tl.load(counts + one * form.bins + bin)
        else:
            here = _count(chosen, one * form.chunk, count, form.bins, form.chunk)
        totals += here
        earlier += tl.where(one < part, here, 0)
    filled = tl.where(bin < number, (totals + rows - 1) // rows, 0)
    begin = tl.sum(tl.where(bin < own, filled, 0), 0)
    end = begin + tl.sum(tl.where(bin == own, filled, 0), 0)
    line = tl.arange(0, rows)
    if own == number:
        for tile in range(begin + part, tiles, tl.num_programs(1)):
            tl.store(experts + tile, -1)
    else:
        slot = begin * rows + tl.sum(tl.where(bin == own, earlier, 0), 0)
        for one in range(1 if form.is_counted else parts):
            place = (part + one) * form.chunk + tl.arange(0, form.chunk)
            is_own = tl.load(chosen + place, mask=place < count, other=form.bins - 1).to(tl.int32) == own
            before = tl.cumsum(is_own.to(tl.int32), 0)
            tl.store(order + slot + before - 1, place, mask=is_own)
            slot += tl.sum(is_own.to(tl.int32), 0)
        if part == tl.num_programs(1) - 1:
            tl.store(order + slot + line, count, mask=slot + line < end * rows)
            for tile in range(begin, end):
                tl.store(experts + tile, own)


def most_tiles(pairs: int, experts: int, rows: int) -> int:
    """As many tiles as there can be, in sixteens: kernels are compiled for such numbers."""
    return -(-min(pairs, pairs // rows + min(experts, pairs)) // 16) * 16


def sorted_slots(chosen: torch.Tensor, number: int, rows: int) -> Slots:
    """(token, chosen) experts, of `number`."""
    count, bins = chosen.numel(), triton.next_power_of_2(number + 1)
    tiles = most_tiles(count, number, rows)
    order, experts = (torch.empty(size, dtype=torch.int32, device=chosen.device) for size in (tiles * rows, tiles))
    parts, is_alone = triton.cdiv(count, CHUNK), count <= ALONE
    chunk = min(CHUNK, triton.next_power_of_2(count))
    counts = order
    if not is_alone:
        counts = torch.empty(parts * bins, dtype=torch.int32, device=chosen.device)
        count_pairs[(parts,)](chosen, counts, count, bins, chunk, num_warps=4)
    form = Sorting(bins, chunk, rows, not is_alone)
    grid = (number + 1, 1 if is_alone else parts)
    sort_pairs[grid](chosen, (order, experts), counts, (count, number, tiles, parts), form, num_warps=4)
    return Slots(order, experts, rows)


@torch.library.custom_op("quire::route", mutates_args=())
def routed(
    logits: torch.Tensor, bias: torch.Tensor | None, each: int, rule: int, is_scaled: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """(token, expert) into the experts that each token chooses, the likeliest first, and their shares. `rule`: softmax
    of all, or of those that are chosen; `is_scaled`: shares of all that are divided by their sum."""
    tokens, count = logits.shape
    experts = torch.empty(tokens, each, dtype=torch.int32, device=logits.device)
    shares = torch.empty(tokens, each, dtype=logits.dtype, device=logits.device)
    form = Routing(triton.next_power_of_2(count), triton.next_power_of_2(each), rule, is_scaled, bias is not None)
    sides = logits if bias is None else bias
    route[(tokens,)](logits, sides, (experts, shares), (count, each), form, num_warps=1)
    return experts, shares


@routed.register_fake
def _(
    logits: torch.Tensor, bias: torch.Tensor | None, each: int, rule: int, is_scaled: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    del bias, rule, is_scaled
    tokens = logits.shape[0]  # len() would have it compiled for one number of tokens
    return logits.new_empty(tokens, each, dtype=torch.int32), logits.new_empty(tokens, each)
