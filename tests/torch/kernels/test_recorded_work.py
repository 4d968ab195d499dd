"""Recorded launches: the same number of items whatever rows hold, and every token read once."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from quire.worker.kernels.recorded import fixed_work, is_split
from quire.worker.kernels.tiles import HeadShape
from quire.worker.kernels.work import QueryRows, Sight, Work

HEADS = HeadShape(32, 8, 128, 128, 2)
PROCESSORS = 132


def rows_at(*positions: int) -> QueryRows:
    each = np.arange(len(positions))
    return QueryRows(each, each, np.array(positions), np.ones_like(each))


def tokens_read(work: Work) -> Counter[tuple[int, int]]:
    """(row, token), how often."""
    read: Counter[tuple[int, int]] = Counter()
    for row, _, _, queries, begin, end, _, _ in work.items.tolist():
        read.update((row, token) for token in range(begin, end) for _ in range(queries))
    return read


@pytest.mark.parametrize("splits", [False, True])
@pytest.mark.parametrize("sight", [Sight(), Sight(window=100), Sight(chunk=64), Sight(window=40, sinks=4)])
def test_rows_of_any_length_make_the_same_launch_and_read_each_token_once(sight: Sight, splits: bool) -> None:
    sizes = set()
    for positions in ((0, 0, 0), (5, 700, 63), (3000, 0, 1), (4095, 4095, 4095)):
        work, slots = fixed_work(rows_at(*positions), sight, HEADS, PROCESSORS, splits)
        sizes.add((len(work.items), len(work.joins), slots))
        read = tokens_read(work)
        assert set(read.values()) == {1}
        for row, position in enumerate(positions):
            first = int(sight.first(np.array([position]))[0])
            seen = {*range(first, position + 1), *range(min(sight.sinks, position + 1))}
            assert {token for owner, token in read if owner == row} == seen
        assert work.slots <= slots
    assert len(sizes) == 1


def test_rows_stay_whole_where_nothing_may_be_split() -> None:
    work, slots = fixed_work(rows_at(9000, 3), Sight(), HEADS, PROCESSORS, False)
    assert (len(work.items), len(work.joins), slots) == (2, 0, 0)


def test_few_long_rows_gain_by_pieces_and_many_equal_ones_do_not() -> None:
    assert is_split(rows_at(32_000), Sight(), HEADS, PROCESSORS)
    assert is_split(rows_at(*[100] * 127, 100_000), Sight(), HEADS, PROCESSORS)
    assert not is_split(rows_at(*[1023] * 256), Sight(), HEADS, PROCESSORS)
