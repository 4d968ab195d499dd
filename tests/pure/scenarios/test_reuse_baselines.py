"""The baselines of bench/reuse.py, against cases computed by hand."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from quire.core.request import Tokens
from quire.kinds.full import Full
from quire.kinds.state import State
from quire.kinds.window import Window
from reuse_lru import LruServer, Row
from reuse_pages import KINDS, PageCache
from reuse_pools import BATCH_TOKENS, PAGE, page_names

FULL = SimpleNamespace(kind=Full(), token_bytes=1.0, fixed_bytes=0)
WINDOW = SimpleNamespace(kind=Window(33), token_bytes=1.0, fixed_bytes=33)
"""A tail of 32 tokens: two pages where a hit ends with a page."""
STATE = SimpleNamespace(kind=State(), token_bytes=0.0, fixed_bytes=100)


def tokens(seed: int, count: int) -> Tokens:
    return np.random.default_rng(seed).integers(0, 1000, count).astype(np.int32)


def run(server: LruServer, place: int, known: Tokens, prompt: int) -> int:
    """One request from beginning to end; what it found."""
    server.submit(place, known, prompt)
    while (batch := server.schedule()) is not None:
        server.complete(batch)
    assert not server.running
    return server.hits()[place]


def test_pages_that_were_used_least_recently_go_first() -> None:
    """Room for three pages: 1, 2, 3 are used in that order, then 1 again; a fourth pushes 2 out."""
    cache = PageCache([10], 30)
    for name in (1, 2, 3, 1, 4):
        assert cache.hold([name * KINDS])
        cache.release([name * KINDS])
    assert [name * KINDS in cache for name in (1, 2, 3, 4)] == [True, False, True, True]


def test_pages_of_running_requests_are_never_evicted() -> None:
    cache = PageCache([10], 20)
    assert cache.hold([1 * KINDS, 2 * KINDS])
    assert not cache.hold([3 * KINDS])
    assert not cache.take(1)
    cache.release([1 * KINDS])
    assert cache.hold([3 * KINDS])
    assert 1 * KINDS not in cache


def test_a_hold_that_finds_no_room_leaves_everything_as_it_was() -> None:
    cache = PageCache([10], 20)
    assert cache.hold([1 * KINDS])
    cache.release([1 * KINDS])
    assert not cache.hold([1 * KINDS, 2 * KINDS, 3 * KINDS])
    assert (cache.held, list(cache.idle), cache.used_bytes, cache.idle_bytes) == ({}, [1 * KINDS], 10, 10)


def test_a_page_that_two_requests_hold_stays_until_both_let_go() -> None:
    cache = PageCache([10], 10)
    assert cache.hold([8])
    assert cache.hold([8])
    cache.release([8])
    assert not cache.take(10)
    cache.release([8])
    assert cache.take(10)


def test_full_attention_finds_whole_pages_before_the_last_token() -> None:
    """100 tokens, answered with 5: 104 are computed, six whole pages. The prompt again finds 96, not its last token."""
    server = LruServer([FULL], 1e9)
    known = tokens(1, 105)
    assert run(server, 0, known, 100) == 0
    assert run(server, 1, known, 100) == 96
    assert run(server, 2, known[:97], 96) == 80
    other = np.concatenate([known[:50], tokens(2, 50)])
    assert run(server, 3, other, 99) == 48


def test_an_answer_is_found_by_the_next_turn() -> None:
    """Prompt 100 and answer 30: of these 129 are computed, so eight pages are there for a prompt that goes on."""
    server = LruServer([FULL], 1e9)
    known = tokens(1, 130)
    run(server, 0, known, 100)
    assert run(server, 1, np.concatenate([known, tokens(2, 40)]), 150) == 128


def test_the_least_recently_used_request_is_lost_from_its_end() -> None:
    """Room for twelve pages. Two requests of six pages fill it; a third of two takes the last two of the first."""
    server = LruServer([FULL], 12 * PAGE)
    first, second, third = (tokens(seed, count) for seed, count in ((1, 97), (2, 97), (3, 33)))
    for place, known in enumerate((first, second, third)):
        assert run(server, place, known, len(known) - 1) == 0
    assert run(server, 3, np.concatenate([first, tokens(4, 9)]), 97) == 64


def test_a_window_needs_its_whole_tail_and_keeps_what_it_left_too() -> None:
    """Windows of 33 tokens: a hit after n pages needs the last two of them. All eight pages of both kinds stay."""
    server = LruServer([FULL, WINDOW], 1e9)
    known = tokens(1, 130)
    run(server, 0, known, 128)
    assert len(server.cache.idle) == 16
    fork = np.concatenate([known[:70], tokens(2, 30)])
    assert run(server, 1, fork, 99) == 64


def test_a_hit_ends_before_a_missing_page_of_a_window() -> None:
    server = LruServer([FULL, WINDOW], 1e9)
    known = tokens(1, 130)
    run(server, 0, known, 128)
    row = Row(1, page_names(known), 128, 2)
    assert server.find(row) == 112
    del server.cache.idle[row.names[5] * KINDS + 1]
    assert server.find(row) == 80, "the tail after 6 or 7 pages lacks page 5; after 5 it is pages 3 and 4"
    del server.cache.idle[row.names[4] * KINDS]
    assert server.find(row) == 64, "full attention ends before page 4"


def test_a_state_is_found_at_multiples_of_its_block_alone() -> None:
    """States each 48 tokens. Of 130 tokens there is one after 48 and after 96."""
    server = LruServer([FULL, STATE], 1e9, state_block=48)
    known = tokens(1, 131)
    assert run(server, 0, known, 130) == 0
    assert run(server, 1, known, 130) == 96
    assert run(server, 2, np.concatenate([known[:90], tokens(2, 9)]), 98) == 48
    assert run(server, 3, np.concatenate([known[:47], tokens(3, 9)]), 55) == 0


def test_a_prefix_is_shared_within_the_step_that_computes_it() -> None:
    """Two equal prompts wait: the second begins with the pages of the first, in one step. A state is not there yet."""
    known = tokens(1, 101)
    for kinds, block, found in (([FULL], 0, 96), ([FULL, STATE], 48, 0)):
        server = LruServer(kinds, 1e9, state_block=block)
        server.submit(0, known, 100)
        server.submit(1, known, 100)
        batch = server.schedule()
        assert batch is not None
        assert list(zip(batch.places, batch.starts, batch.counts, strict=True)) == [
            (0, 0, 100),
            (1, found, 100 - found),
        ]


def test_a_prompt_is_computed_in_chunks_of_the_budget() -> None:
    server = LruServer([FULL], 1e9)
    server.submit(0, tokens(1, BATCH_TOKENS + 101), BATCH_TOKENS + 100)
    first = server.schedule()
    assert first is not None
    assert (first.counts, first.samples) == ((BATCH_TOKENS,), 0)
    assert not server.complete(first)
    second = server.schedule()
    assert second is not None
    assert (second.starts, second.counts, second.samples) == ((BATCH_TOKENS,), (100,), 1)
    assert server.complete(second) == [0]


def test_a_request_waits_until_its_whole_prompt_has_room_and_holds_up_those_after_it() -> None:
    """Room for ten pages. The first holds six; the second needs six and waits, the third would fit and waits too."""
    server = LruServer([FULL], 10 * PAGE)
    for place, count in enumerate((96, 96, 16)):
        server.submit(place, tokens(place, count + 2), count)
    batch = server.schedule()
    assert batch is not None
    assert list(batch.places) == [0]
    server.complete(batch)
    while (batch := server.schedule()) is not None:
        server.complete(batch)
    assert sorted(server.hits()) == [0, 1, 2]


def test_the_youngest_is_preempted_when_answers_outgrow_the_room() -> None:
    """Room for eight pages, two requests of four pages each that go on for one more: one of them starts again, and what
    it finds then does not count."""
    server = LruServer([FULL], 8 * PAGE)
    for place in (0, 1):
        server.submit(place, tokens(place, 80), 64)
    while (batch := server.schedule()) is not None:
        server.complete(batch)
    assert server.preemptions == 1
    assert server.hits() == {0: 0, 1: 0}
    assert server.cache.used_bytes == server.cache.idle_bytes <= 8 * PAGE


def test_the_longest_cached_prefix_goes_first_where_it_is_asked_for() -> None:
    known = tokens(1, 130)
    for by_prefix, order in ((False, [1, 2, 3]), (True, [3, 2, 1])):
        server = LruServer([FULL], 1e9, by_prefix=by_prefix)
        run(server, 0, known, 129)
        for place, alike in ((1, 0), (2, 32), (3, 96)):
            server.submit(place, np.concatenate([known[:alike], tokens(9 + place, 140 - alike)]), 139)
        batch = server.schedule()
        assert batch is not None
        assert list(batch.places) == order


def test_of_prompts_that_begin_alike_and_find_nothing_one_goes_first() -> None:
    """1 and 2 begin with the same 32 tokens, 3 with others: 2 waits behind 3, for what 1 computes."""
    server = LruServer([FULL], 1e9, by_prefix=True)
    begin = tokens(1, 40)
    for place in (1, 2):
        server.submit(place, np.concatenate([begin, tokens(place + 5, 60)]), 99)
    server.submit(3, tokens(4, 100), 99)
    batch = server.schedule()
    assert batch is not None
    assert list(batch.places) == [1, 3, 2]


@pytest.mark.law
@pytest.mark.parametrize("seed", range(20))
def test_bytes_add_up_whatever_comes(seed: int) -> None:
    """Random requests in a small room, windows and states: all end, no byte is lost, the room is never exceeded."""
    random = np.random.default_rng(seed)
    mix = ([FULL], [FULL, WINDOW], [FULL, STATE])[seed % 3]
    server = LruServer(mix, 80 * PAGE, state_block=48 if STATE in mix else 0, by_prefix=seed % 2 == 1)
    bases = [tokens(one, 300) for one in range(4)]
    for place in range(40):
        base, alike = bases[random.integers(4)], int(random.integers(1, 300))
        known = np.concatenate([base[:alike], tokens(100 + place, int(random.integers(2, 60)))])
        server.submit(place, known, len(known) - int(random.integers(1, min(20, len(known) - 1) + 1)))
        for _ in range(int(random.integers(3))):
            if (batch := server.schedule()) is not None:
                server.complete(batch)
            assert server.cache.used_bytes <= server.cache.capacity_bytes
    while (batch := server.schedule()) is not None:
        server.complete(batch)
        assert server.cache.used_bytes <= server.cache.capacity_bytes
    assert sorted(server.hits()) == list(range(40))
    assert not server.cache.held
    idle = sum(server.cache.page_bytes[key % KINDS] for key in server.cache.idle)
    assert server.cache.used_bytes == server.cache.idle_bytes == idle
