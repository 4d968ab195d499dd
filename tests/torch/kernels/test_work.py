"""Cutting attention: each query reads every token it sees exactly once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.worker.kernels.shape import Tiles
from quire.worker.kernels.tiles import HeadShape, piece_tokens_for, tiles_for
from quire.worker.kernels.work import QueryRows, Sight, Work, blocks_of, cut, lengths_of

SIGHTS = st.one_of(
    st.just(Sight()),
    st.builds(Sight, window=st.integers(1, 50)),
    st.builds(Sight, chunk=st.integers(1, 50)),
    st.builds(Sight, window=st.integers(1, 50), chunk=st.just(0), sinks=st.integers(1, 30)),
)
ROWS = st.lists(st.tuples(st.integers(0, 90), st.integers(0, 12)), min_size=1, max_size=4)
DECODE = Tiles(16, 64, 4, 2, programs=4, is_peeled=False)


def rows_of(rows: list[tuple[int, int]]) -> QueryRows:
    positions, counts = np.array(rows, dtype=np.int64).reshape(-1, 2).T
    return QueryRows(np.arange(len(rows)) + 5, np.cumsum(counts) - counts, positions, counts)


def tokens_read(work: Work) -> dict[int, list[int]]:
    """By place in the packed batch: the tokens of all pieces that its block reads."""
    read: dict[int, list[int]] = {}
    for _, place, _, queries, begin, end, _, _ in work.items:
        for query in range(queries):
            read.setdefault(int(place + query), []).extend(range(begin, end))
    return read


@pytest.mark.law
@given(ROWS, SIGHTS, st.integers(1, 5), st.integers(1, 70))
def test_every_query_reads_what_it_sees_once(
    rows: list[tuple[int, int]], sight: Sight, block_queries: int, piece_tokens: int
) -> None:
    read = tokens_read(cut(blocks_of(rows_of(rows), block_queries), sight, piece_tokens))
    place = 0
    for position, count in rows:
        for query in range(position, position + count):
            tokens = read.pop(place)
            first = int(sight.first(np.array(query)))
            assert len(set(tokens)) == len(tokens)
            assert {*range(min(sight.sinks, first)), *range(first, query + 1)} <= set(tokens)
            place += 1
    assert not read


@pytest.mark.law
@given(ROWS, SIGHTS, st.integers(1, 70))
def test_one_query_reads_nothing_that_it_does_not_see(
    rows: list[tuple[int, int]], sight: Sight, piece_tokens: int
) -> None:
    rows = [(position, min(count, 1)) for position, count in rows]
    sizes = {
        place: len(tokens)
        for place, tokens in tokens_read(cut(blocks_of(rows_of(rows), 1), sight, piece_tokens)).items()
    }
    seen = [query + 1 - sight.first(np.array(query)) for query, count in rows if count]
    sinks = [min(sight.sinks, int(sight.first(np.array(query)))) for query, count in rows if count]
    assert [sizes[place] for place in range(len(seen))] == [a + b for a, b in zip(seen, sinks, strict=True)]


@pytest.mark.law
@given(ROWS, SIGHTS, st.integers(1, 5), st.integers(1, 70))
def test_partial_results_have_places_of_their_own(
    rows: list[tuple[int, int]], sight: Sight, block_queries: int, piece_tokens: int
) -> None:
    work = cut(blocks_of(rows_of(rows), block_queries), sight, piece_tokens)
    shared = work.items[work.items[:, 6] > 1]
    assert sorted(shared[:, 7]) == list(range(work.slots))
    for place, queries, slot, pieces in work.joins:
        of_block = shared[(shared[:, 7] >= slot) & (shared[:, 7] < slot + pieces)]
        assert (of_block[:, [1, 3, 6]] == [place, queries, pieces]).all()


def test_the_longest_pieces_start_first() -> None:
    items = cut(rows_of([(3, 1), (90, 1), (40, 1)]), Sight(), 64).items
    lengths = items[:, 5] - items[:, 4]
    assert list(lengths) == sorted(lengths, reverse=True)


@pytest.mark.parametrize(
    ("rows", "length", "piece_tokens"), [(8, 32_768, 4_096), (64, 4_096, 4_096), (512, 512, 512), (1, 4_096, 64)]
)
def test_rows_are_cut_until_all_processors_work(rows: int, length: int, piece_tokens: int) -> None:
    assert piece_tokens_for(np.full(rows, length), 8, DECODE, 132) == piece_tokens


def test_one_long_row_among_short_ones_is_cut() -> None:
    assert piece_tokens_for(np.array([100_000] + [100] * 200), 8, DECODE, 132) < 10_000


def test_a_prompt_with_enough_blocks_is_not_cut() -> None:
    prompts = QueryRows(np.arange(4), np.arange(4) * 4_096, np.zeros(4, dtype=int), np.full(4, 4_096))
    tiles, _ = tiles_for(4_096, HeadShape(32, 8, 128, 128, 2))
    blocks = blocks_of(prompts, tiles.rows // 4)
    assert piece_tokens_for(lengths_of(blocks, Sight()), 8, tiles, 132) >= 4_096


@pytest.mark.parametrize("width", [16, 64, 80, 128, 192, 256, 512])
@pytest.mark.parametrize("number_bytes", [2, 4])
@pytest.mark.parametrize("queries", [1, 4, 128])
@pytest.mark.parametrize("group", [1, 4, 7, 16])
def test_tiles_leave_room_in_shared_memory(queries: int, width: int, number_bytes: int, group: int) -> None:
    """227 KiB are what a program may take on an H100 or H200: queries, and keys and values for every stage."""
    tiles, _ = tiles_for(queries, HeadShape(group * 2, 2, width, width, number_bytes))
    assert tiles.rows >= group
    padded = 1 << (width - 1).bit_length()
    assert (tiles.rows + 2 * tiles.tokens * tiles.stages) * padded * number_bytes < 227 << 10


@pytest.mark.parametrize("heads", [1, 5, 16, 96, 128])
def test_heads_that_share_a_latent_are_dealt_evenly(heads: int) -> None:
    tiles, group = tiles_for(1, HeadShape(heads, 1, 512, 512, 2, rope_width=64))
    assert heads % group == 0
    assert group <= tiles.rows
