"""How far from its likeliest token each row samples: the limits of top_k and top_p, without sorting the vocabulary and
without waiting for the device.

A token's distance is what its logit lacks to the greatest, divided by the temperature; exp(-distance) is its weight.
Two passes sum the weights of the tokens in 16 bins each. A third one lists the tokens of the bin that the limit is in;
among those, a row's limit is found by bisection, to the last bit.

    coarse   0 ├────┼────┼────┼─ … ─┤ reach      weights of 16 bins: the limit is in one of them,
    fine            ├┼┼┼┼┤                       which becomes 16 bins
    held              │tokens of one fine bin│   ──▶ the smallest distance up to which tokens weigh enough

top_k weighs every token as 1; top_p weighs by probability, among the tokens that top_k kept. Tokens that tie with the
last one kept are kept too. Bins are summed in fp32. Where that could decide which bin the limit is in, the neighbour is
taken as well; everything that the limit depends on is summed in fp64, in the same order in every step.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

PIECE_TOKENS = tl.constexpr(4096)
"""Tokens of a program."""
BLOCK_TOKENS = tl.constexpr(512)
"""Of these, at once."""
BINS = tl.constexpr(16)
PIECES = tl.constexpr(64)
"""Notes of pieces that are read at once."""
PLACES = tl.constexpr(32)
"""Of each of these pieces, tokens held that are read at once."""
WARPS = 4
SETTLE_WARPS = 8
MOST = tl.constexpr(3.4028234663852886e38)
FAR = tl.constexpr(1e38)
SLACK = tl.constexpr(1e-5)
"""Relative error of bins summed in fp32, with room to spare: a thread adds 32 numbers."""

# What a row is given, in fp64.
TEMPERATURE, TOP_K, TOP_P, LEAST, CHANCE, REACH = (tl.constexpr(column) for column in range(6))
COLUMNS = tl.constexpr(6)
"""LEAST: the logarithm of min_p. REACH: no limit of top_p is farther than log(vocabulary ÷ (1 − top_p))."""

# What programs note, in fp64: a number for each row, field and piece.
GREATEST, FARTHEST, BEST, TOTAL, NEARER, HELD, LIMIT, KEPT, COARSE = (tl.constexpr(field) for field in range(9))
FINE = tl.constexpr(24)
FIELDS = tl.constexpr(40)
"""FARTHEST: the smallest finite logit. LIMIT: of the row, with its first piece. COARSE and FINE: a field per bin."""


@triton.jit
def notes_of(notes, vocabulary):
    """Of this program's row."""
    return notes + tl.program_id(1).to(tl.int64) * FIELDS * tl.cdiv(vocabulary, PIECE_TOKENS)


@triton.jit
def read(own, field, first, vocabulary, other):
    """Notes of some pieces."""
    pieces = tl.cdiv(vocabulary, PIECE_TOKENS)
    piece = first + tl.arange(0, PIECES)
    return tl.load(own + field * pieces + piece, mask=piece < pieces, other=other)


@triton.jit
def write(own, field, vocabulary, value):
    """The note of this program's piece."""
    tl.store(own + field * tl.cdiv(vocabulary, PIECE_TOKENS) + tl.program_id(0), value.to(tl.float64))


@triton.jit
def summed(own, field, vocabulary):
    total = tl.zeros((PIECES,), tl.float64)
    for first in range(0, tl.cdiv(vocabulary, PIECE_TOKENS), PIECES):
        total += read(own, field, first, vocabulary, 0.0)
    return tl.sum(total, 0)


@triton.jit
def greatest_of(own, vocabulary):
    """The greatest logit of the row, finite."""
    greatest = tl.full((PIECES,), -MOST, tl.float64)
    for first in range(0, tl.cdiv(vocabulary, PIECE_TOKENS), PIECES):
        greatest = tl.maximum(greatest, read(own, GREATEST, first, vocabulary, -MOST))
    return tl.minimum(tl.max(greatest, 0), MOST).to(tl.float32)


@triton.jit
def distances(row, first, nearest, temperature, vocabulary):
    """Of a block of tokens, never -0; infinite for NaN and beyond the vocabulary."""
    token = first + tl.arange(0, BLOCK_TOKENS)
    logit = tl.load(row + token, mask=token < vocabulary, other=float("-inf")).to(tl.float32)
    logit = tl.where(logit == logit, tl.minimum(logit, MOST), float("-inf"))
    return tl.abs(tl.div_rn(nearest - logit, temperature))


@triton.jit
def has_limit(wish, by_chance: tl.constexpr):
    """Whether the row limits this."""
    is_limited = tl.load(wish + TOP_P) < 1 if by_chance else tl.load(wish + TOP_K) > 0
    return is_limited & (tl.load(wish + TEMPERATURE) > 0)


@triton.jit
def limit_before(wish, own, vocabulary, by_chance: tl.constexpr):
    """The distance that top_k left to top_p."""
    limit = tl.full((), float("inf"), tl.float32)
    if by_chance:  # noqa: SIM102 - decided when the kernel is compiled
        if tl.load(wish + TOP_K) > 0:
            limit = tl.load(own + LIMIT * tl.cdiv(vocabulary, PIECE_TOKENS)).to(tl.float32)
    return limit


@triton.jit
def reach_of(wish, own, vocabulary, by_chance: tl.constexpr):
    """The limit is no farther than this distance, or the tokens beyond weigh nothing."""
    smallest = tl.full((PIECES,), MOST, tl.float64)
    for first in range(0, tl.cdiv(vocabulary, PIECE_TOKENS), PIECES):
        smallest = tl.minimum(smallest, read(own, FARTHEST, first, vocabulary, MOST))
    spread = (greatest_of(own, vocabulary).to(tl.float64) - tl.min(smallest, 0)) / tl.load(wish + TEMPERATURE)
    reach = tl.maximum(tl.minimum(spread * (1 + 1e-6), FAR), 1e-30).to(tl.float32)
    if by_chance:
        reach = tl.minimum(reach, tl.load(wish + REACH).to(tl.float32))
        reach = tl.minimum(reach, tl.maximum(limit_before(wish, own, vocabulary, by_chance), 1e-30))
    return reach


@triton.jit
def target_of(wish, own, vocabulary, by_chance: tl.constexpr):
    """What the tokens up to the limit weigh at least."""
    if by_chance:
        target = tl.load(wish + TOP_P) * summed(own, TOTAL, vocabulary)
    else:
        target = tl.minimum(tl.load(wish + TOP_K), vocabulary)
    return target


@triton.jit
def weights(distance, by_chance: tl.constexpr):
    return tl.exp(-distance) if by_chance else tl.full(distance.shape, 1.0, tl.float32)


@triton.jit
def bins_of(distance, low, size, is_within):
    """Numbers that grow with the distance, -1 outside."""
    beyond = tl.minimum(tl.maximum(distance - low, 0.0), size)
    number = tl.minimum(beyond * tl.div_rn(BINS * 1.0, size), BINS - 1.0)
    return tl.where(is_within, number.to(tl.int32), -1)


@triton.jit
def chosen(own, field, before, target, vocabulary, slack: tl.constexpr):
    """(first bin that the limit may be in, last one, what is nearer)."""
    number, pieces = tl.arange(0, BINS), tl.cdiv(vocabulary, PIECE_TOKENS)
    each = tl.zeros((BINS,), tl.float64)
    for begin in range(0, pieces, PIECES):
        piece = begin + tl.arange(0, PIECES)
        some = tl.load(own + (field + number[:, None]) * pieces + piece[None, :], mask=piece[None, :] < pieces, other=0)
        each += tl.sum(some, 1)
    through = before + tl.cumsum(each, 0)
    first = tl.min(tl.where(through >= target * (1 - slack), number, BINS - 1), 0)
    last = tl.max(tl.where(through - each < target * (1 + slack), number, 0), 0)
    return first, tl.maximum(first, last), before + tl.sum(tl.where(number < first, each, 0.0), 0)


@triton.jit
def count_coarsely(logits, given, notes, vocabulary, by_chance: tl.constexpr):
    """Grid (piece, row): weights of 16 bins up to the reach."""
    own, wish = notes_of(notes, vocabulary), given + tl.program_id(1) * COLUMNS
    if has_limit(wish, by_chance):
        row, begin = logits + tl.program_id(1).to(tl.int64) * vocabulary, tl.program_id(0) * PIECE_TOKENS
        nearest, temperature = greatest_of(own, vocabulary), tl.load(wish + TEMPERATURE).to(tl.float32)
        reach, limit = reach_of(wish, own, vocabulary, by_chance), limit_before(wish, own, vocabulary, by_chance)
        number = tl.arange(0, BINS)
        each, total = tl.zeros((BINS, BLOCK_TOKENS), tl.float32), tl.zeros((BLOCK_TOKENS,), tl.float64)
        for first in range(begin, tl.minimum(begin + PIECE_TOKENS, vocabulary), BLOCK_TOKENS):
            distance = distances(row, first, nearest, temperature, vocabulary)
            weight = weights(distance, by_chance)
            bin = bins_of(distance, 0.0, reach, distance <= reach)
            each += tl.where(bin[None, :] == number[:, None], weight[None, :], 0.0)
            total += tl.where(distance <= limit, weight, 0.0).to(tl.float64)
        write(own, COARSE + number, vocabulary, tl.sum(each, 1))
        write(own, TOTAL, vocabulary, tl.sum(total, 0))


@triton.jit
def count_finely(logits, given, notes, vocabulary, by_chance: tl.constexpr):
    """Grid (piece, row): weights of 16 bins in place of the coarse one."""
    own, wish = notes_of(notes, vocabulary), given + tl.program_id(1) * COLUMNS
    if has_limit(wish, by_chance):
        row, begin = logits + tl.program_id(1).to(tl.int64) * vocabulary, tl.program_id(0) * PIECE_TOKENS
        nearest, temperature = greatest_of(own, vocabulary), tl.load(wish + TEMPERATURE).to(tl.float32)
        reach, target = reach_of(wish, own, vocabulary, by_chance), target_of(wish, own, vocabulary, by_chance)
        low, high, _lighter = chosen(own, COARSE, 0.0, target, vocabulary, SLACK if by_chance else 0)
        number, each = tl.arange(0, BINS), tl.zeros((BINS, BLOCK_TOKENS), tl.float32)
        for first in range(begin, tl.minimum(begin + PIECE_TOKENS, vocabulary), BLOCK_TOKENS):
            distance = distances(row, first, nearest, temperature, vocabulary)
            bin, _is_nearer = narrowed(distance, reach, low, high)
            each += tl.where(bin[None, :] == number[:, None], weights(distance, by_chance)[None, :], 0.0)
        write(own, FINE + number, vocabulary, tl.sum(each, 1))


@triton.jit
def narrowed(distance, reach, low, high):
    """(fine bin or -1, whether the token is nearer than all of them)."""
    coarse = bins_of(distance, 0.0, reach, distance <= reach)
    size = reach / BINS
    fine = bins_of(distance, low * size, (high - low + 1) * size, (coarse >= low) & (coarse <= high))
    return fine, (coarse >= 0) & (coarse < low)


@triton.jit
def list_held(logits, given, notes, held, vocabulary, by_chance: tl.constexpr):
    """Grid (piece, row): the distances in the fine bin, in the piece's place in `held`, and what is nearer."""
    own, wish = notes_of(notes, vocabulary), given + tl.program_id(1) * COLUMNS
    if has_limit(wish, by_chance):
        begin, before = tl.program_id(0) * PIECE_TOKENS, tl.program_id(1).to(tl.int64) * vocabulary
        nearest, temperature = greatest_of(own, vocabulary), tl.load(wish + TEMPERATURE).to(tl.float32)
        reach, target = reach_of(wish, own, vocabulary, by_chance), target_of(wish, own, vocabulary, by_chance)
        low, high, lighter = chosen(own, COARSE, 0.0, target, vocabulary, SLACK if by_chance else 0)
        least, most, _lightest = chosen(own, FINE, lighter, target, vocabulary, SLACK if by_chance else 0)
        nearer, count = tl.zeros((BLOCK_TOKENS,), tl.float64), tl.full((), 0, tl.int32)
        for first in range(begin, tl.minimum(begin + PIECE_TOKENS, vocabulary), BLOCK_TOKENS):
            distance = distances(logits + before, first, nearest, temperature, vocabulary)
            bin, is_nearer = narrowed(distance, reach, low, high)
            is_nearer = is_nearer | ((bin >= 0) & (bin < least))
            is_held = (bin >= least) & (bin <= most)
            nearer += tl.where(is_nearer, weights(distance, by_chance), 0.0).to(tl.float64)
            place = count + tl.cumsum(is_held.to(tl.int32), 0) - 1
            tl.store(held + before + begin + place, distance, mask=is_held)
            count += tl.sum(is_held.to(tl.int32), 0)
        write(own, NEARER, vocabulary, tl.sum(nearer, 0))
        write(own, HELD, vocabulary, count)


@triton.jit
def load_held(row, counts, begin, column):
    """A tile of (piece, place): distances, and which of them are there."""
    piece, place = begin + tl.arange(0, PIECES), column + tl.arange(0, PLACES)
    is_there = place[None, :] < counts[:, None]
    return tl.load(row + piece[:, None] * PIECE_TOKENS + place[None, :], mask=is_there, other=0.0), is_there


@triton.jit
def extent(row, own, vocabulary):
    """(smallest distance held, greatest), as integers of the same order."""
    least, most = tl.full((PIECES, PLACES), 0x7F7FFFFF, tl.int32), tl.zeros((PIECES, PLACES), tl.int32)
    for begin in range(0, tl.cdiv(vocabulary, PIECE_TOKENS), PIECES):
        counts = read(own, HELD, begin, vocabulary, 0.0).to(tl.int32)
        for column in range(0, tl.max(counts, 0), PLACES):
            distance, is_there = load_held(row, counts, begin, column)
            key = distance.to(tl.int32, bitcast=True)
            least, most = tl.minimum(least, tl.where(is_there, key, 0x7F7FFFFF)), tl.maximum(most, key)
    return tl.min(tl.min(least, 1), 0), tl.max(tl.max(most, 1), 0)


@triton.jit
def weigh_held(row, own, limit, vocabulary, by_chance: tl.constexpr):
    """Of the tokens held that are no farther than the limit."""
    total = tl.zeros((PIECES, PLACES), tl.float64)
    for begin in range(0, tl.cdiv(vocabulary, PIECE_TOKENS), PIECES):
        counts = read(own, HELD, begin, vocabulary, 0.0).to(tl.int32)
        for column in range(0, tl.max(counts, 0), PLACES):
            distance, is_there = load_held(row, counts, begin, column)
            is_near = is_there & (distance.to(tl.int32, bitcast=True) <= limit)
            total += tl.where(is_near, weights(distance, by_chance), 0.0).to(tl.float64)
    return tl.sum(tl.sum(total, 1), 0)


@triton.jit
def settle(given, notes, held, vocabulary, by_chance: tl.constexpr):
    """Grid (1, row): the smallest distance up to which tokens weigh enough."""
    own, wish = notes_of(notes, vocabulary), given + tl.program_id(1) * COLUMNS
    if has_limit(wish, by_chance):
        row = held + tl.program_id(1).to(tl.int64) * vocabulary
        missing = target_of(wish, own, vocabulary, by_chance) - summed(own, NEARER, vocabulary)
        low, high = extent(row, own, vocabulary)
        while low < high:
            middle = low + (high - low) // 2
            if weigh_held(row, own, middle, vocabulary, by_chance) >= missing:
                high = middle
            else:
                low = middle + 1
        limit = tl.minimum(high.to(tl.float32, bitcast=True), limit_before(wish, own, vocabulary, by_chance))
        write(own, LIMIT, vocabulary, limit)


def limit_rows(logits: torch.Tensor, given: torch.Tensor, notes: torch.Tensor, by_chance: bool) -> None:
    """Notes the LIMIT of rows that have a top_p (`by_chance`) or a top_k. Notes of `survey` come first."""
    rows, vocabulary = logits.shape
    assert logits.is_contiguous(), "kernels count on rows that follow each other"
    held = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    grid = (triton.cdiv(vocabulary, PIECE_TOKENS.value), rows)
    count_coarsely[grid](logits, given, notes, vocabulary, by_chance, num_warps=WARPS)
    count_finely[grid](logits, given, notes, vocabulary, by_chance, num_warps=WARPS)
    list_held[grid](logits, given, notes, held, vocabulary, by_chance, num_warps=WARPS)
    settle[(1, rows)](given, notes, held, vocabulary, by_chance, num_warps=SETTLE_WARPS)
