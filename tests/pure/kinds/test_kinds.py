"""Each kind's own rules, by hand. The independent oracle is in tests/pure/laws."""

from __future__ import annotations

import numpy as np
import pytest

from quire.core.errors import PlanError
from quire.core.memory import Memory
from quire.kinds import Chunked, Cross, Full, Indexed, Kind, Latent, Sink, State, Window, counts, kind_of


def test_live_sets_follow_the_definition_of_each_attention() -> None:
    assert Full().live(10) == ((0, 10),)
    assert Latent(4).live(10) == ((0, 10),)
    assert Indexed(3).live(10) == ((0, 10),)
    assert Window(4).live(10) == ((7, 10),)
    assert Window(4).live(2) == ((0, 2),)
    assert Chunked(4).live(10) == ((8, 10),)
    assert Chunked(4).live(8) == ((8, 8),)
    assert Sink(2, 4).live(10) == ((0, 2), (7, 10))
    assert Sink(2, 4).live(5) == ((0, 5),)
    assert Cross(7).live(10) == ((0, 7),)


def test_a_prefix_hit_needs_what_the_next_token_reads() -> None:
    """full: the whole prefix; window: its tail; chunked: the chunk so far; state: a checkpoint at the boundary."""
    assert Full().hit_needs(64) == ((0, 64),)
    assert Indexed(3).hit_needs(64) == ((0, 64),)
    assert Window(16).hit_needs(64) == ((49, 64),)
    assert Chunked(48).hit_needs(64) == ((48, 64),)
    assert State().hit_needs(64) == ((63, 64),)
    assert Sink(4, 16).hit_needs(64) == ((0, 4), (49, 64))


def test_a_chunked_layer_drops_its_whole_chunk_at_the_boundary() -> None:
    pages = Chunked(64).pages(counts([63, 64, 65]), counts(1), counts(0), 16)  # type: ignore[arg-type]
    assert pages.tolist() == [4, 1, 1]


def test_a_state_needs_one_page_and_one_more_per_lookahead_token_it_must_rewind() -> None:
    assert int(State().pages(counts(100), counts(8), counts(3), 1)) == 4
    assert int(State(rewinds=False).pages(counts(100), counts(8), counts(3), 1)) == 1


def test_a_page_touched_by_sink_and_window_counts_once() -> None:
    assert int(Sink(4, 8).pages(counts(9), counts(1), counts(0), 16)) == 1
    assert int(Sink(4, 20).pages(counts(40), counts(1), counts(0), 16)) == 3


def test_a_folded_latent_stores_whole_states_only() -> None:
    assert int(Latent(4).units(counts(11))) == 2
    assert Latent(4).units_per_page(16) == 4
    assert Latent(128).page_choices(narrow=True) == (128,)


@pytest.mark.parametrize(("kind", "page"), [(Latent(4), 6), (Latent(128), 64), (State(), 16), (Full(), 0)])
def test_a_page_that_cuts_a_state_is_refused(kind: Kind, page: int) -> None:
    with pytest.raises(PlanError):
        kind.check_page(page)


@pytest.mark.parametrize(
    "memory",
    [
        Memory("window", (), window=0),
        Memory("window", ()),
        Memory("chunked", (), chunk=-1),
        Memory("sink", (), sinks=0, window=4),
        Memory("cross", (), encoder_tokens=0),
        Memory("latent", (), tokens_per_state=0),
        Memory("indexed", ()),
        Memory.of("indexed", (), {"top_tokens": 0}),
        Memory("elephant", ()),
    ],
)
def test_impossible_numbers_are_refused_by_name(memory: Memory) -> None:
    with pytest.raises(PlanError) as caught:
        kind_of(memory)
    assert "\n" not in str(caught.value)


def test_equal_rules_are_one_kind() -> None:
    """Layers with different head sizes but the same window may share pages."""
    assert kind_of(Memory("window", (), window=8)) == Window(8)
    assert hash(Window(8)) == hash(Window(8))
    assert Window(8) != Window(9)


def test_an_index_selects_among_all_earlier_tokens_and_kernels_cannot_bound_that() -> None:
    """A query may read any of them, so each is kept; a kernel that knows windows, chunks and sinks must refuse it."""
    seen = Indexed(3).sees(counts(range(9))[:, None], counts(range(9))[None, :])  # type: ignore[arg-type]
    assert (seen == np.tri(9, dtype=np.bool_)).all()
    assert Indexed(3).selects
    assert Indexed(3).mask_bounds is None
    assert [Full().selects, Latent().selects] == [False, False]
    assert Full().mask_bounds == {}


def test_a_chunk_has_at_most_a_mebi_of_tokens() -> None:
    assert Chunked(1 << 20).chunk == 1 << 20
    for chunk in (0, (1 << 20) + 1):
        with pytest.raises(PlanError, match="choose 1 to 1,048,576"):
            Chunked(chunk)
