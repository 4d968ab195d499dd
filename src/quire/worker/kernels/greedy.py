"""The likeliest token of each row: pieces of the vocabulary first, then the best of them. Ties go to the first.

NaN is never the likeliest; a row of NaN gets token 0, and no token lies outside the vocabulary.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

PIECE_TOKENS = 4096


@triton.jit
def best_of_pieces(logits, best, best_token, row_stride, vocabulary, piece_tokens: tl.constexpr):
    """Grid (piece, row)."""
    place = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    token = tl.program_id(0) * piece_tokens + tl.arange(0, piece_tokens)
    row = logits + tl.program_id(1).to(tl.int64) * row_stride
    found = tl.load(row + token, mask=token < vocabulary, other=float("-inf")).to(tl.float32)
    found = tl.where(found == found, found, float("-inf"))
    greatest, which = tl.max(found, 0, return_indices=True)
    tl.store(best + place, greatest)
    tl.store(best_token + place, tl.minimum(tl.program_id(0) * piece_tokens + which, vocabulary - 1))


@triton.jit
def best_of_all(best, best_token, tokens, last, rows, pieces, padded_pieces: tl.constexpr):
    """Grid (row,)."""
    row = tl.program_id(0)
    piece = tl.arange(0, padded_pieces)
    found = tl.load(best + row * pieces + piece, mask=piece < pieces, other=float("-inf"))
    _, which = tl.max(found, 0, return_indices=True)
    token = tl.load(best_token + row * pieces + tl.minimum(which, pieces - 1)).to(tl.int64)
    tl.store(tokens + row, token)
    tl.store(last + tl.load(rows + row), token)


def likeliest(logits: torch.Tensor, rows: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """(row,), of (row, vocabulary); each is also written to `last` at its place in `rows`."""
    count, vocabulary = logits.shape
    pieces = triton.cdiv(vocabulary, PIECE_TOKENS)
    best = torch.empty(count, pieces, dtype=torch.float32, device=logits.device)
    best_token = torch.empty(count, pieces, dtype=torch.int32, device=logits.device)
    tokens = torch.empty(count, dtype=torch.int64, device=logits.device)
    best_of_pieces[(pieces, count)](logits, best, best_token, logits.stride(0), vocabulary, PIECE_TOKENS)
    best_of_all[(count,)](best, best_token, tokens, last, rows, pieces, triton.next_power_of_2(pieces))
    return tokens
