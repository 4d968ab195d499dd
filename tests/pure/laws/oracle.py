"""Demand, token by token, from the definition of attention. Shares no code with what it judges.

A `Remembers` says which tokens a query may read. Everything else is brute force: draw the mask, look at which settled
tokens some later query still reads, add the tokens being written, mark the pages they touch, count the marks.

    reads[i, j]   query token i reads token j
    later[c, j]   some query ≥ c reads token j
    kept[c, j]    with c tokens settled, j is one of them and still to be read, or it is written now
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Remembers:
    """One way to remember, by its definition. Only the numbers of its own kind matter."""

    kind: str
    window: int = 0
    chunk: int = 0
    sinks: int = 0
    fold: int = 1
    encoder: int = 0
    top: int = 0
    rewinds: bool = True


@lru_cache(maxsize=64)
def reads(how: Remembers, tokens: int) -> Mask:
    query, token = np.arange(tokens)[:, None], np.arange(tokens)[None, :]
    past: Mask = np.less_equal(token, query)
    in_window: Mask = np.less(query - how.window, token)
    if how.kind in ("full", "latent", "indexed"):  # an index may select any earlier token
        return past
    if how.kind == "window":
        return past & in_window
    if how.kind == "chunked":
        return past & np.equal(query // how.chunk, token // how.chunk)
    if how.kind == "sink":
        return past & ((token < how.sinks) | in_window)
    raise AssertionError(f"{how.kind} does not read tokens of the sequence")


@lru_cache(maxsize=64)
def later(how: Remembers, tokens: int) -> Mask:
    """Row c: what the queries c, c + 1, … up to the horizon `tokens` read."""
    mask: Mask = np.logical_or.accumulate(reads(how, tokens)[::-1])[::-1]
    return mask


def kept(how: Remembers, settled: Ints, end: Ints) -> Mask:
    """A row per moment: the tokens that must have a slot. Drawn to at least one query beyond the last token."""
    size = -(-(int(end.max()) + 1) // 128) * 128
    tokens = np.arange(size)
    settled, end = settled[:, None], end[:, None]
    written = (tokens >= settled) & (tokens < end)
    return (later(how, size)[settled[:, 0]] & (tokens < settled)) | written


def pages(how: Remembers, settled: Ints, new: Ints, ahead: Ints, page: int) -> Ints:
    """Demand at several moments."""
    if how.kind == "state":
        return 1 + ahead if how.rewinds else np.ones_like(ahead)
    if how.kind == "cross":
        return np.full_like(ahead, len({token // page for token in range(how.encoder)}))
    tokens = kept(how, settled, settled + new + ahead)
    tokens = np.pad(tokens, ((0, 0), (0, -tokens.shape[1] % page)))
    marked = tokens.reshape(len(settled), -1, page).any(axis=2)
    count: Ints = np.count_nonzero(marked, axis=1)
    return count


def every_moment(how: Remembers, length: int, chunk: int, ahead: int, page: int) -> Ints:
    """Demand at every number of settled tokens below `length`; new and lookahead tokens end where the request does."""
    settled = np.arange(length)
    new = np.minimum(chunk, length - settled)
    return pages(how, settled, new, np.minimum(ahead, length - settled - new), page)


def steady(how: Remembers, lengths: Ints, page: int) -> Ints:
    """Demand in steady decode: all tokens but one are settled, the last one is being computed."""
    return pages(how, lengths - 1, np.ones_like(lengths), np.zeros_like(lengths), page)


def units(how: Remembers, length: int) -> int:
    """What steady decode stores: tokens, states whose tokens are all there to be folded, or one recurrent state."""
    if how.kind == "state":
        return 1
    if how.kind == "cross":
        return how.encoder
    tokens = kept(how, np.array([length - 1]), np.array([length]))[0]
    tokens = np.pad(tokens, (0, -len(tokens) % how.fold))
    return int(tokens.reshape(-1, how.fold).all(axis=1).sum())


@dataclass(frozen=True)
class Share:
    """One kind beside others in one pool, and how it is cut: `groups` tables, each with its own pages."""

    how: Remembers
    page: int
    groups: int
    pages_per_sheet: int


def lone_request(shares: Sequence[Share], length: int, chunk: int, ahead: int, reserved: int = 0) -> Ints:
    """Whole sheets that one request takes at every moment of its life, all kinds together."""
    sheets = np.zeros(length, dtype=np.int64)
    for share in shares:
        held = share.groups * every_moment(share.how, length, chunk, ahead, share.page) + reserved
        sheets += held // share.pages_per_sheet + (held % share.pages_per_sheet > 0)
    return sheets


def together(
    shares: Sequence[Share], sheets: int, length: int, ahead: int = 0, reserved: int = 0, chunk: int = 0
) -> int:
    """Requests in steady decode are let in one after the other, each with its own pages, until one finds no sheet.

    Each computes one token beside its settled ones; with `ahead` lookahead tokens they reach `length` together.

    Before them come the pages that a backend keeps for itself and newcomers with `chunk` tokens in flight.
    """
    looked = np.array([min(ahead, length - 1)])
    moment = length - 1 - looked, np.ones_like(looked), looked
    each = [share.groups * int(pages(share.how, *moment, share.page)[0]) for share in shares]
    free = [0 for _ in shares]

    def take(wanted: Sequence[int]) -> bool:
        nonlocal sheets
        for index, share in enumerate(shares):
            while free[index] < wanted[index]:
                if sheets == 0:
                    return False
                sheets, free[index] = sheets - 1, free[index] + share.pages_per_sheet
            free[index] -= wanted[index]
        return True

    if not take([reserved for _ in shares]):
        return 0
    while chunk:
        new = np.array([min(chunk, length)])
        chunk -= int(new[0])
        zero, past = np.zeros_like(new), np.minimum(ahead, length - new)
        if not take([share.groups * int(pages(share.how, zero, new, past, share.page)[0]) for share in shares]):
            return 0
    requests = 0
    while take(each):
        requests += 1
    return requests
