"""Why a prompt goes on from less than was computed of it before: tokens by cause, from what is remembered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from quire.prefix.gap import CAUSES, Gap, gap
from quire.prefix.ghosts import Ghost, Ghosts

UNIT, ARRIVAL = 16, 7
BEFORE, AFTER = ARRIVAL, ARRIVAL + 1
"""Requests that had arrived when something was evicted: all before this one, and this one too."""


def keys(begin: int, end: int) -> list[bytes]:
    return [f"{unit:07}".encode() for unit in range(begin, end)]


def ghosts(*pieces: tuple[int, int, int], ends: dict[int, int] | None = None) -> Ghosts:
    """`pieces`: units [begin, end) that were evicted when so many requests had arrived. `ends`: boundaries that were,
    alone, by the last unit before them."""
    made = Ghosts(lambda _: None)
    for begin, end, arrivals in pieces:
        made.add(keys(begin, end), Ghost(0, 0.0, 0, 0, b"", arrivals))
    for unit, arrivals in (ends or {}).items():
        (key,) = keys(unit - 1, unit)
        made.add([key], Ghost(0, 0.0, 0, 0, key, arrivals))
    return made


def missed(known: Ghosts, prompt: int, hit: int, usable: int, cached: int) -> Gap:
    """Of a prompt with so many whole units; the others in units too."""
    return gap(known, keys(0, prompt), (hit * UNIT, usable * UNIT, cached * UNIT), ARRIVAL, UNIT)


def test_a_prompt_that_finds_all_that_was_computed_before_misses_nothing() -> None:
    found = missed(ghosts(), 9, 5, 5, 5)
    assert found == Gap()
    assert found.numbers() == {}


def test_what_was_evicted_before_the_request_came_is_evicted() -> None:
    assert missed(ghosts((3, 8, BEFORE)), 12, 3, 3, 3) == Gap(evicted=5 * UNIT)


def test_what_was_evicted_after_the_request_had_come_was_evicted_while_it_waited() -> None:
    assert missed(ghosts((3, 8, AFTER)), 12, 3, 3, 3) == Gap(evicted_waiting=5 * UNIT)


def test_cached_units_behind_the_last_boundary_were_never_kept() -> None:
    assert missed(ghosts(), 12, 2, 2, 9) == Gap(never_kept=7 * UNIT)


def test_cached_units_up_to_a_boundary_that_was_evicted_lost_their_tail() -> None:
    assert missed(ghosts(ends={9: BEFORE}), 12, 2, 2, 9) == Gap(tail_evicted=7 * UNIT)
    assert missed(ghosts(ends={6: BEFORE, 9: BEFORE}), 12, 2, 2, 9) == Gap(tail_evicted=7 * UNIT), "the last counts"


def test_a_boundary_that_was_evicted_after_the_request_had_come_was_evicted_while_it_waited() -> None:
    assert missed(ghosts(ends={9: AFTER}), 12, 2, 2, 9) == Gap(evicted_waiting=7 * UNIT)


def test_beyond_a_boundary_that_was_evicted_none_was_kept() -> None:
    assert missed(ghosts(ends={6: BEFORE}), 12, 2, 2, 9) == Gap(tail_evicted=4 * UNIT, never_kept=3 * UNIT)


def test_a_hit_that_was_shortened_for_lack_of_pages_had_no_room() -> None:
    assert missed(ghosts(), 12, 2, 5, 5) == Gap(no_room=3 * UNIT)


def test_boundaries_that_were_evicted_before_the_hit_or_behind_what_is_cached_do_not_count() -> None:
    assert missed(ghosts(ends={2: BEFORE}), 12, 2, 2, 9) == Gap(never_kept=7 * UNIT)
    assert missed(ghosts(ends={11: BEFORE}), 12, 2, 2, 9) == Gap(never_kept=7 * UNIT)


def test_all_five_causes_add_up_to_what_was_computed_before() -> None:
    """Hit 1 · no room 2 · tail evicted 3 · never kept 4 · evicted 5 · evicted while it waited 6 · new 2."""
    known = ghosts((10, 15, BEFORE), (15, 21, AFTER), ends={6: BEFORE})
    found = missed(known, 23, 1, 3, 10)
    assert found == Gap(4 * UNIT, 3 * UNIT, 5 * UNIT, 6 * UNIT, 2 * UNIT)
    assert found.numbers() == {
        "missed_never_kept": 4 * UNIT,
        "missed_tail_evicted": 3 * UNIT,
        "missed_evicted": 5 * UNIT,
        "missed_evicted_waiting": 6 * UNIT,
        "missed_no_room": 2 * UNIT,
    }
    assert [f"missed_{cause}" for cause in CAUSES] == list(found.numbers())


def test_pieces_of_one_cause_are_added_up() -> None:
    known = ghosts((2, 4, BEFORE), (4, 9, AFTER), (9, 12, BEFORE))
    assert missed(known, 12, 2, 2, 2) == Gap(evicted=5 * UNIT, evicted_waiting=5 * UNIT)


def test_units_of_a_long_prompt_are_counted_to_the_last_one() -> None:
    """100,000 units of 16 tokens; of what was evicted behind the prompt's end, nothing counts."""
    known = ghosts((60_000, 130_000, BEFORE), ends={50_000: AFTER})
    found = missed(known, 100_000, 10, 20_000, 60_000)
    assert found == Gap(10_000 * UNIT, 0, 40_000 * UNIT, 30_000 * UNIT, 19_990 * UNIT)


@pytest.mark.story
def test_a_hit_between_two_units_is_not_counted_as_missed_as_well() -> None:
    """A turn ended after 85 tokens, in the middle of a unit: the whole unit counted as missed, though a request went
    on from there."""
    known = ghosts((6, 8, BEFORE))
    assert gap(known, keys(0, 9), (85, 85, 5 * UNIT), ARRIVAL, UNIT) == Gap()
    assert gap(known, keys(0, 9), (85, 85, 6 * UNIT), ARRIVAL, UNIT) == Gap(never_kept=11, evicted=32)
    assert gap(ghosts((5, 8, BEFORE)), keys(0, 9), (85, 85, 5 * UNIT), ARRIVAL, UNIT) == Gap(evicted=128 - 85)
    assert gap(known, keys(0, 9), (64, 85, 5 * UNIT), ARRIVAL, UNIT) == Gap(no_room=21)


places = st.lists(st.integers(0, 40), min_size=3, max_size=3).map(sorted)
pieces = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9), st.integers(0, 9)), max_size=8)


@pytest.mark.law
@examples(150)
@given(places, st.integers(0, UNIT - 1), pieces, st.dictionaries(st.integers(1, 40), st.integers(0, 9)))
def test_hit_and_gap_are_never_more_than_was_computed_before(
    units: list[int], more: int, evicted: list[tuple[int, int, int]], ends: dict[int, int]
) -> None:
    """Whatever was evicted when; hits may end between units. Nor are they less than what is cached."""
    known = ghosts(*((begin, begin + size, arrivals) for begin, size, arrivals in evicted), ends=ends)
    hit, usable, cached = units[0] * UNIT, units[1] * UNIT + more, units[2] * UNIT
    found = gap(known, keys(0, 42), (hit, usable, cached), ARRIVAL, UNIT)
    before = {unit for begin, size, _ in evicted for unit in range(begin, min(42, begin + size))}
    before |= {unit - 1 for unit in ends} | set(range(units[2]))
    computed = next(unit for unit in range(43) if unit not in before) * UNIT
    assert min(found) >= 0
    assert max(usable, cached) <= hit + sum(found) <= max(computed, usable)
