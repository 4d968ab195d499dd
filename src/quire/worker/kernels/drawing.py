"""A token for each row, drawn by one uniform number: the first one at which the running sum of weights exceeds it.

    survey        greatest logit of each piece, and its token          grid (piece, row)
    limit_rows    top_k, then top_p: `nucleus.py`                      only if a row has one
    weigh_kept    the weight of each piece's tokens within the limit   grid (piece, row)
    pick          the piece that the running sum passes, then the token   grid (row,)

Rows with temperature 0 take their greatest logit. A row's token depends on its own logits and wishes alone: its sums
are added in the same order whatever the other rows are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl

from quire.worker.kernels.nucleus import (
    BEST,
    BLOCK_TOKENS,
    CHANCE,
    COLUMNS,
    FARTHEST,
    FIELDS,
    GREATEST,
    KEPT,
    LEAST,
    LIMIT,
    MOST,
    PIECE_TOKENS,
    PIECES,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    WARPS,
    distances,
    greatest_of,
    limit_rows,
    notes_of,
    read,
    summed,
    write,
)

REACH_SLACK = 0.01
"""For rounding of weights."""


@triton.jit
def survey(logits, notes, vocabulary):
    """Grid (piece, row). NaN counts as -inf."""
    own = notes_of(notes, vocabulary)
    token = tl.program_id(0) * PIECE_TOKENS + tl.arange(0, PIECE_TOKENS)
    row = logits + tl.program_id(1).to(tl.int64) * vocabulary
    logit = tl.load(row + token, mask=token < vocabulary, other=float("-inf")).to(tl.float32)
    logit = tl.where(logit == logit, logit, float("-inf"))
    greatest, which = tl.max(logit, 0, return_indices=True)
    write(own, GREATEST, vocabulary, greatest)
    write(own, BEST, vocabulary, tl.program_id(0) * PIECE_TOKENS + which)
    write(own, FARTHEST, vocabulary, tl.min(tl.where(logit > float("-inf"), logit, float("inf")), 0))


@triton.jit
def limit_of(wish, own, vocabulary):
    """The distance up to which the row samples."""
    limit = -tl.load(wish + LEAST).to(tl.float32)
    if (tl.load(wish + TOP_K) > 0) | (tl.load(wish + TOP_P) < 1):
        limit = tl.minimum(limit, tl.load(own + LIMIT * tl.cdiv(vocabulary, PIECE_TOKENS)).to(tl.float32))
    return limit


@triton.jit
def weigh_kept(logits, given, notes, vocabulary):
    """Grid (piece, row)."""
    own, wish = notes_of(notes, vocabulary), given + tl.program_id(1) * COLUMNS
    temperature = tl.load(wish + TEMPERATURE).to(tl.float32)
    if temperature > 0:
        row, begin = logits + tl.program_id(1).to(tl.int64) * vocabulary, tl.program_id(0) * PIECE_TOKENS
        nearest, limit = greatest_of(own, vocabulary), limit_of(wish, own, vocabulary)
        total = tl.zeros((BLOCK_TOKENS,), tl.float64)
        for first in range(begin, tl.minimum(begin + PIECE_TOKENS, vocabulary), BLOCK_TOKENS):
            distance = distances(row, first, nearest, temperature, vocabulary)
            total += tl.where(distance <= limit, tl.exp(-distance), 0.0).to(tl.float64)
        write(own, KEPT, vocabulary, tl.sum(total, 0))


@triton.jit
def likeliest_of(own, vocabulary):
    """The first token with the greatest logit."""
    greatest, token = tl.full((), float("-inf"), tl.float64), tl.full((), 0.0, tl.float64)
    for first in range(0, tl.cdiv(vocabulary, PIECE_TOKENS), PIECES):
        found = read(own, GREATEST, first, vocabulary, float("-inf"))
        most = tl.max(found, 0)
        best = tl.min(tl.where(found == most, read(own, BEST, first, vocabulary, MOST), MOST), 0)
        token = tl.where(most > greatest, best, token)
        greatest = tl.maximum(greatest, most)
    return token.to(tl.int64)


@triton.jit
def piece_of(own, wanted, vocabulary):
    """(the piece in which the running sum exceeds `wanted`, the sum before it). If rounding leaves none: the last piece
    with any weight."""
    before, start = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
    piece, last = tl.full((), -1, tl.int32), tl.full((), 0, tl.int32)
    for first in range(0, tl.cdiv(vocabulary, PIECE_TOKENS), PIECES):
        kept = read(own, KEPT, first, vocabulary, 0.0)
        number, through = first + tl.arange(0, PIECES), before + tl.cumsum(kept, 0)
        found = tl.min(tl.where(through > wanted, number, 0x7FFFFFFF), 0)
        if (piece < 0) & (found < 0x7FFFFFFF):
            piece, start = found, tl.max(tl.where(number < found, through, before), 0)
        last = tl.maximum(last, tl.max(tl.where(kept > 0, number, 0), 0))
        before = tl.max(through, 0)
    return tl.where(piece < 0, last, piece), tl.where(piece < 0, -1.0, start)


@triton.jit
def pick(logits, given, notes, tokens, vocabulary):
    """Grid (1, row)."""
    own, wish = notes_of(notes, vocabulary), given + tl.program_id(1) * COLUMNS
    temperature = tl.load(wish + TEMPERATURE).to(tl.float32)
    token = tl.full((), 0, tl.int64)
    if temperature == 0:
        token = likeliest_of(own, vocabulary)
    else:
        row = logits + tl.program_id(1).to(tl.int64) * vocabulary
        nearest, limit = greatest_of(own, vocabulary), limit_of(wish, own, vocabulary)
        wanted = tl.load(wish + CHANCE) * summed(own, KEPT, vocabulary)
        piece, before = piece_of(own, wanted, vocabulary)
        found, last = tl.full((), 0x7FFFFFFF, tl.int32), tl.full((), 0, tl.int32)
        begin = piece * PIECE_TOKENS
        for first in range(begin, tl.minimum(begin + PIECE_TOKENS, vocabulary), BLOCK_TOKENS):
            distance = distances(row, first, nearest, temperature, vocabulary)
            weight = tl.where(distance <= limit, tl.exp(-distance), 0.0).to(tl.float64)
            number, through = first + tl.arange(0, BLOCK_TOKENS), before + tl.cumsum(weight, 0)
            found = tl.minimum(found, tl.min(tl.where((through > wanted) & (weight > 0), number, 0x7FFFFFFF), 0))
            last = tl.maximum(last, tl.max(tl.where(weight > 0, number, 0), 0))
            before = tl.max(through, 0)
        token = tl.where(found < 0x7FFFFFFF, found, last).to(tl.int64)
    tl.store(tokens + tl.program_id(1), token)


@dataclass(frozen=True, slots=True, eq=False)
class Wishes:
    """What rows ask of a draw, in main memory, and which launches that takes."""

    numbers: npt.NDArray[np.float64]
    """(row, column of `nucleus`)."""
    has_top_k: bool
    has_top_p: bool


def wishes_of(columns: npt.NDArray[np.float64], chances: npt.NDArray[np.float64], vocabulary: int) -> Wishes:
    """`columns`: (temperature, top_k, top_p, log of min_p; row)."""
    temperature, top_k, top_p, _ = columns
    with np.errstate(divide="ignore"):
        reach = np.log(vocabulary / (1 - top_p)) + REACH_SLACK
    numbers = np.ascontiguousarray(np.vstack([columns, chances, reach]).T)
    is_hot = temperature > 0
    return Wishes(numbers, bool((is_hot & (top_k > 0)).any()), bool((is_hot & (top_p < 1)).any()))


def draw(logits: torch.Tensor, given: torch.Tensor, wishes: Wishes) -> torch.Tensor:
    """(row,), of (row, vocabulary) in any float type; `given`: the numbers of the wishes on the device."""
    logits = logits.contiguous()
    tokens, notes = survey_rows(logits)
    rows, vocabulary = logits.shape
    if wishes.has_top_k:
        limit_rows(logits, given, notes, False)
    if wishes.has_top_p:
        limit_rows(logits, given, notes, True)
    grid = (triton.cdiv(vocabulary, PIECE_TOKENS.value), rows)
    weigh_kept[grid](logits, given, notes, vocabulary, num_warps=WARPS)
    pick[(1, rows)](logits, given, notes, tokens, vocabulary, num_warps=WARPS)
    return tokens


def survey_rows(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Places for the tokens, and the first notes."""
    rows, vocabulary = logits.shape
    pieces = triton.cdiv(vocabulary, PIECE_TOKENS.value)
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    notes = torch.empty(rows, FIELDS.value, pieces, dtype=torch.float64, device=logits.device)
    survey[pieces, rows](logits, notes, vocabulary, num_warps=WARPS)
    return tokens, notes
