"""What tokens read: the intervals that the checker counts with, compared with masks, query by query."""

from __future__ import annotations

import numpy as np
import pytest

from quire.check.definitions import DEFINITIONS, pages_read, pages_touched, seen
from quire.kinds import KINDS, Chunked, Full, Indexed, Kind, Latent, Sink, Window

LENGTH = 26
FAR = 100
"""More than a query later, where no mask reaches back for the first time."""
TRIED = [
    Full(),
    Latent(2),
    Indexed(3),
    *(Window(window) for window in (1, 2, 3, 7, 30)),
    *(Chunked(chunk) for chunk in (1, 2, 5, 30)),
    *(Sink(sinks, window) for sinks, window in ((1, 1), (1, 2), (2, 3), (4, 1), (5, 9), (30, 2))),
]


def masked(kind: Kind, first: int, end: int) -> list[int]:
    """Keys before `end` that a query from `first` on may see, also one that comes much later."""
    query, key = np.arange(first, end + FAR)[:, None], np.arange(end)[None, :]
    mask = key <= query
    if isinstance(kind, Window):
        mask &= key > query - kind.window
    elif isinstance(kind, Chunked):
        mask &= key // kind.chunk == query // kind.chunk
    elif isinstance(kind, Sink):
        mask &= (key > query - kind.window) | (key < kind.sinks)
    return np.flatnonzero(mask.any(axis=0)).tolist()


def pages_of(positions: list[int], page_tokens: int) -> int:
    return sum(1 << page for page in {position // page_tokens for position in positions})


def test_every_kind_has_a_definition() -> None:
    """A kind without one is drawn for random systems, and the checker cannot say what its tokens read."""
    assert set(DEFINITIONS) == set(KINDS)


def test_every_kind_that_keeps_tokens_is_tried_here() -> None:
    """A state keeps none of its tokens, and a cross attention those of another sequence."""
    assert {kind.kind for kind in TRIED} == set(KINDS) - {"state", "cross"}


@pytest.mark.law
@pytest.mark.parametrize("kind", TRIED, ids=repr)
def test_tokens_see_what_the_mask_of_their_attention_says(kind: Kind) -> None:
    """Every run of queries up to 26 tokens; runs do not overlap."""
    for end in range(1, LENGTH):
        for first in range(end):
            positions = [position for run in seen(kind, first, end) for position in range(*run)]
            assert positions == masked(kind, first, end)


@pytest.mark.law
@pytest.mark.parametrize("page_tokens", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", TRIED, ids=repr)
def test_pages_that_are_read_or_touched_are_those_of_the_tokens_seen(kind: Kind, page_tokens: int) -> None:
    """With tokens in flight theirs are among them; without, only those that the next token reads of the past."""
    for settled in range(LENGTH - 6):
        past = [position for position in masked(kind, settled, settled + 1) if position < settled]
        assert pages_read(kind, page_tokens, settled, 0) == pages_of(past, page_tokens)
        for new in (1, 4):
            positions = masked(kind, settled, settled + new)
            assert pages_read(kind, page_tokens, settled, new) == pages_of(positions, page_tokens)
            ahead = list(range(settled + new, settled + new + 2))
            assert pages_touched(kind, page_tokens, settled, new, 2) == pages_of(positions + ahead, page_tokens)
