"""What a kind demands is what the mask of its attention reads."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mixes import page_for, remembers, rules
from oracle import Remembers

from examples import examples
from quire.kinds import KINDS, counts

pytestmark = pytest.mark.law

CHUNK_BESIDE_PAGES = Remembers("chunked", chunk=1000)
WINDOW_OF_TWO_PAGES = Remembers("window", window=128)


def small_kinds() -> Iterator[Remembers]:
    yield Remembers("full")
    for size in range(1, 10):
        yield Remembers("window", window=size)
        yield Remembers("chunked", chunk=size)
        yield Remembers("cross", encoder=size)
        for sinks in (1, 2, 5, 9):
            yield Remembers("sink", sinks=sinks, window=size)
    for fold in (1, 2, 4):
        yield Remembers("latent", fold=fold)
    yield Remembers("indexed", top=3)
    yield Remembers("state")
    yield Remembers("state", rewinds=False)


def name(how: Remembers) -> str:
    return rules(how).name


def test_every_kind_is_tried_here() -> None:
    """A kind of the package without a definition in the oracle would pass every law."""
    assert {how.kind for how in small_kinds()} == set(KINDS)


@pytest.mark.parametrize("how", list(small_kinds()), ids=name)
def test_every_small_demand_equals_the_pages_that_the_mask_marks(how: Remembers) -> None:
    """demand = the pages that touch live(c) ∪ [c, c+n+s), for every small page, c, n and s."""
    moments = np.array(list(itertools.product(range(28), (0, 1, 2, 3, 8), (0, 1, 3))))
    settled, new, ahead = moments.T
    for page in range(how.fold, 13, how.fold):
        told = rules(how).pages(settled, new, ahead, page)
        np.testing.assert_array_equal(told, oracle.pages(how, settled, new, ahead, page), f"page {page}")


@examples(300)
@given(st.data(), remembers())
def test_any_demand_equals_the_pages_that_the_mask_marks(data: st.DataObject, how: Remembers) -> None:
    """The same for windows, chunks and pages of any size, and for one moment as for many at once."""
    page = data.draw(page_for(how), "page")
    moment = st.tuples(st.integers(0, 700), st.integers(1, 300), st.integers(0, 16))
    settled, new, ahead = np.array(data.draw(st.lists(moment, min_size=1, max_size=20), "moments")).T
    kind = rules(how)
    marked = oracle.pages(how, settled, new, ahead, page)
    at_once = kind.pages(counts(settled), counts(new), counts(ahead), page)
    assert at_once.dtype == np.int64
    np.testing.assert_array_equal(at_once, marked)
    one_by_one = [
        int(kind.pages(counts(int(c)), counts(int(n)), counts(int(s)), page))
        for c, n, s in zip(settled, new, ahead, strict=True)
    ]
    assert one_by_one == marked.tolist()


@examples(200)
@given(remembers().filter(lambda how: how.kind not in ("state", "cross")), st.integers(0, 700))
def test_what_is_live_is_what_later_queries_read(how: Remembers, settled: int) -> None:
    """live(c) names exactly the settled tokens that a query from c on reads."""
    told = [token for begin, end in rules(how).live(settled) for token in range(begin, end)]
    read = np.flatnonzero(oracle.kept(how, np.array([settled]), np.array([settled]))[0])
    assert sorted(set(told)) == read.tolist()


@examples(100)
@given(remembers().filter(lambda how: how.kind not in ("state", "cross")), st.integers(1, 700))
def test_a_query_sees_the_tokens_that_the_mask_of_its_attention_marks(how: Remembers, tokens: int) -> None:
    """Demand does not depend on holes in a mask, and the reference attention does."""
    places = counts(np.arange(tokens))
    np.testing.assert_array_equal(rules(how).sees(places[:, None], places[None, :]), oracle.reads(how, tokens))


@examples(200)
@given(remembers(), st.integers(1, 700))
def test_stored_units_are_the_tokens_kept_in_steady_decode(how: Remembers, length: int) -> None:
    """What is live in steady decode: tokens, folded states, one recurrent state."""
    assert int(rules(how).units(counts(length))) == oracle.units(how, length)


@examples(400)
@given(st.data(), remembers(), st.integers(1, 600), st.integers(0, 9))
def test_the_minimum_of_a_kind_is_its_dearest_moment_token_by_token(
    data: st.DataObject, how: Remembers, length: int, ahead: int
) -> None:
    """minimum(L) = max over c < L of demand(c, 1, s), the lookahead clipped to the request's limit."""
    page = data.draw(page_for(how), "page")
    assert rules(how).minimum(length, ahead, page) == oracle.every_moment(how, length, 1, ahead, page).max()


@examples(400)
@given(st.data(), remembers(), st.integers(1, 600), st.integers(1, 700), st.integers(0, 9))
def test_the_peak_of_a_kind_is_its_dearest_moment_in_prefill(
    data: st.DataObject, how: Remembers, length: int, chunk: int, ahead: int
) -> None:
    """peak = the same with up to a chunk in flight. Fewer tokens may demand more: they leave lookahead to rewind."""
    page = data.draw(page_for(how), "page")
    near = {chunk, length} | {end - less for end in (chunk, length) for less in range(ahead + 2)}
    chunks = [new for new in {1, 2, 3} | near if 1 <= new <= chunk]
    dearest = max(oracle.every_moment(how, length, new, ahead, page).max() for new in chunks)
    assert rules(how).peak(length, chunk, ahead, page) == dearest


@examples(200)
@given(st.data(), remembers(), st.integers(1, 600))
def test_what_is_resident_is_the_demand_of_steady_decode(data: st.DataObject, how: Remembers, length: int) -> None:
    """resident(L): L − 1 tokens settled, one being computed, no lookahead."""
    page = data.draw(page_for(how), "page")
    assert rules(how).resident(counts(length), page) == oracle.steady(how, np.array([length]), page)[0]


@pytest.mark.parametrize("length", [999, 1000, 1001, 1999, 2000, 2001, 3064])
def test_a_chunk_that_does_not_divide_by_the_page_may_straddle_one_more(length: int) -> None:
    """C = 1,000 in pages of 64: the second chunk begins inside a page and touches 17, not 16."""
    kind = rules(CHUNK_BESIDE_PAGES)
    marked = oracle.every_moment(CHUNK_BESIDE_PAGES, length, 1, 0, 64)
    told = kind.pages(np.arange(length), counts(1), counts(0), 64)
    np.testing.assert_array_equal(told, marked)
    assert kind.minimum(length, 0, 64) == marked.max() == (16 if length <= 1984 else 17)


@pytest.mark.parametrize(
    ("length", "ahead", "pages"),
    [
        (128, 3, 2),
        (192, 3, 3),
        (193, 3, 4),
        (194, 3, 4),
        (500, 3, 4),
        (193, 0, 3),
        (500, 0, 3),
        (500, 1, 3),
        (500, 2, 4),
    ],
)
def test_a_window_with_lookahead_may_straddle_one_more_page(length: int, ahead: int, pages: int) -> None:
    """W = 128 in pages of 64 with 3 lookahead tokens: 131 tokens touch 4 pages, although 128 touch 3."""
    marked = oracle.every_moment(WINDOW_OF_TWO_PAGES, length, 1, ahead, 64)
    assert rules(WINDOW_OF_TWO_PAGES).minimum(length, ahead, 64) == marked.max() == pages


@examples(200)
@given(st.integers(1, 200), st.integers(0, 100_000), st.integers(1, 64), st.integers(0, 8))
def test_a_window_layer_never_holds_more_than_its_window(window: int, settled: int, page: int, ahead: int) -> None:
    """W tokens and the lookahead, wherever they lie and however long the request: no page beyond those they touch."""
    told = int(rules(Remembers("window", window=window)).pages(counts(settled), counts(1), counts(ahead), page))
    tokens = range(max(0, settled - window + 1), settled + 1 + ahead)
    assert told == len({token // page for token in tokens})
