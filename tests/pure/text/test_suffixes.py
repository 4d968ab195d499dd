"""Drafts by the longest suffix: what a search through all tokens finds, within a scope and within memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from quire.core.errors import InputError
from quire.text import suffixes
from quire.text.suffixes import BLOCK_TOKENS, EACH_BYTES, LEVELS, OWN_TOKENS, SuffixDrafter

ROWS = 3
ROOM = 64 * EACH_BYTES
Ints = npt.NDArray[np.int64]


class Exact(SuffixDrafter):
    """Every hash has a slot of its own, so no entry gives way to another."""

    def __init__(self, memory_bytes: int = ROOM) -> None:
        super().__init__(ROWS, memory_bytes)
        self._numbers: dict[tuple[int, int, int], int] = {}
        self._table = np.zeros(1 << 16, dtype=np.int64)

    def _keys(self, hashes: npt.NDArray[np.uint64], salts: npt.NDArray[np.uint64]) -> tuple[Ints, Ints]:
        slots = np.zeros(hashes.shape, dtype=np.int64)
        for level, place in np.ndindex(hashes.shape):
            key = level - len(hashes), int(hashes[level, place]), int(salts[place % len(salts)])
            slots[level, place] = self._numbers.setdefault(key, len(self._numbers))
        return slots, np.ones(hashes.shape, dtype=np.int64)


class Told:
    """Everything that a drafter is told, and a search through it."""

    def __init__(self, drafter: SuffixDrafter) -> None:
        self.drafter = drafter
        self.texts: list[tuple[str, list[int]]] = []
        self.rows: dict[int, int] = {}
        self.written: list[tuple[int, int]] = []
        """(text, index) of each token, in the order in which they came."""

    def enter(self, row: int, tokens: list[int], scope: str = "") -> None:
        self.drafter.enter(row, np.array(tokens, dtype=np.int32), scope)
        self.rows[row] = len(self.texts)
        self.texts.append((scope, list(tokens)))
        self.written += [(self.rows[row], index) for index in range(len(tokens))]

    def extend(self, tokens: dict[int, int]) -> None:
        self.drafter.extend(np.array(list(tokens)), np.array(list(tokens.values()), dtype=np.int32))
        for row, token in tokens.items():
            text = self.texts[self.rows[row]][1]
            text.append(token)
            self.written.append((self.rows[row], len(text) - 1))

    def expected(self, row: int, count: int) -> list[int]:
        scope, own = self.texts[self.rows[row]]
        for size in (size for size in LEVELS if size <= len(own)):
            for text, index in reversed(self.written):
                other_scope, other = self.texts[text]
                if other_scope == scope and index >= size and other[index - size : index] == own[-size:]:
                    found = other[index : index + count]
                    is_loop = text == self.rows[row] and index + len(found) == len(own)
                    return (found * count)[:count] if is_loop else found
        return []


Events = list[tuple[int, str, list[int]]]
PIECES = st.lists(st.integers(0, 2), min_size=1, max_size=30)


@pytest.mark.law
@examples(80)
@given(st.lists(st.tuples(st.integers(0, ROWS - 1), st.sampled_from(["", "a"]), PIECES), max_size=8), st.booleans())
def test_it_finds_what_a_search_for_the_longest_suffix_finds(events: Events, is_new: bool) -> None:
    """Rows in turns; the first event of a row, and every second one where `is_new`, gives it to another request."""
    told = Told(Exact())
    for number, (row, scope, tokens) in enumerate(events):
        if row not in told.rows or (is_new and number % 2):
            told.enter(row, tokens, scope)
        else:
            for token in tokens:
                told.extend({row: token})
        for one in told.rows:
            assert told.drafter.look_up(one, 5) == told.expected(one, 5)


def test_rows_that_are_extended_together_are_what_they_are_one_by_one() -> None:
    random, together, apart = np.random.default_rng(1), Told(Exact()), Told(Exact())
    for row in range(ROWS):
        together.enter(row, [row, 7])
        apart.enter(row, [row, 7])
    for _ in range(60):
        tokens = {row: int(random.integers(0, 2)) for row in range(ROWS)}
        together.extend(tokens)
        for row, token in tokens.items():
            apart.extend({row: token})
        for row in range(ROWS):
            assert together.drafter.look_up(row, 4) == apart.drafter.look_up(row, 4) == together.expected(row, 4)


@pytest.mark.parametrize("length", [OWN_TOKENS + 10, 3 * BLOCK_TOKENS + 5])
def test_what_is_found_goes_on_in_the_next_block(length: int) -> None:
    """In a prompt, which is written at once, and in outputs, which come one by one."""
    text = np.random.default_rng(2).integers(0, 1000, length + 40).tolist()
    for is_prompt in (True, False):
        told = Told(Exact())
        told.enter(0, text if is_prompt else text[:5])
        for token in [] if is_prompt else text[5:]:
            told.extend({0: token})
        for begin in (3, OWN_TOKENS - 20, OWN_TOKENS - 1, OWN_TOKENS, OWN_TOKENS + 6, length):
            told.enter(1, text[max(0, begin - 24) : begin])
            assert told.drafter.look_up(1, 20) == text[begin : begin + 20] == told.expected(1, 20)


def test_a_request_never_sees_tokens_of_another_scope() -> None:
    told = Told(Exact())
    told.enter(0, list(range(50)), "ann")
    told.enter(1, list(range(20)), "bob")
    assert told.drafter.look_up(1, 4) == []
    told.enter(2, list(range(20)), "ann")
    assert told.drafter.look_up(2, 4) == [20, 21, 22, 23]


class Careless(SuffixDrafter):
    """Forgets scopes, and finds the same slot for everything."""

    def _keys(self, hashes: npt.NDArray[np.uint64], salts: npt.NDArray[np.uint64]) -> tuple[Ints, Ints]:
        del salts
        return np.zeros(hashes.shape, dtype=np.int64), np.ones(hashes.shape, dtype=np.int64)


def test_a_collision_of_hashes_drafts_nothing_of_another_scope_or_of_other_tokens() -> None:
    told = Told(Careless(ROWS, ROOM))
    told.enter(0, list(range(50)), "ann")
    told.enter(1, list(range(46, 49)), "bob")
    assert told.drafter.look_up(1, 4) == []
    told = Told(Careless(ROWS, ROOM))
    told.enter(0, list(range(50)))
    told.extend({0: 7})
    told.enter(1, [90])
    assert told.drafter.look_up(1, 4) == []


def test_scopes_that_are_too_many_begin_anew_and_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffixes, "MOST_SCOPES", 2)
    told = Told(Exact())
    told.enter(0, list(range(30)), "ann")
    told.enter(1, list(range(10)), "bob")
    told.enter(1, list(range(10)), "cat")
    assert told.drafter.look_up(1, 4) == []
    told.enter(1, list(range(10)), "ann")
    assert told.drafter.look_up(1, 4) == []


def test_memory_is_what_was_given_however_much_is_written() -> None:
    drafter = SuffixDrafter(ROWS, ROOM)
    assert 0.5 * ROOM < drafter.size_bytes <= ROOM
    random, before = np.random.default_rng(3), drafter.size_bytes
    for number in range(100):
        drafter.enter(number % ROWS, random.integers(0, 9, 1000).astype(np.int32), str(number % 5))
        drafter.extend(np.arange(ROWS), np.zeros(ROWS, dtype=np.int32)) if number >= ROWS else None
    assert drafter.size_bytes == before
    with pytest.raises(InputError, match=f"too few for 3 requests: give at least {8 * EACH_BYTES:,}"):
        SuffixDrafter(ROWS, 8 * EACH_BYTES - 1)


@pytest.mark.law
@examples(20)
@given(st.integers(0, 1 << 30))
def test_the_oldest_tokens_give_way_and_what_is_left_is_found_rightly(seed: int) -> None:
    """A log of 8 blocks. Whatever is drafted followed at least three equal tokens of the scope."""
    random, told = np.random.default_rng(seed), Told(SuffixDrafter(ROWS, 8 * EACH_BYTES))
    told.enter(0, random.integers(0, 1000, 200).tolist())
    told.enter(1, told.texts[0][1][:50])
    assert told.drafter.look_up(1, 4) == told.texts[0][1][50:54]
    for _ in range(10):
        told.enter(2, random.integers(0, 3, int(random.integers(1, 700))).tolist(), str(random.integers(2)))
        for _ in range(int(random.integers(0, 60))):
            told.extend({row: int(random.integers(0, 3)) for row in range(ROWS)})
        for row in range(ROWS):
            scope, own = told.texts[told.rows[row]]
            found = told.drafter.look_up(row, 1)
            texts = [text for other, text in told.texts if other == scope]
            assert not found or any(is_in(own[-3:] + found, text) for text in texts)
    told.enter(1, told.texts[0][1][:50])
    told.enter(0, told.texts[0][1][:50], "other")
    assert told.drafter.look_up(0, 4) == []


def is_in(piece: list[int], text: list[int]) -> bool:
    return any(text[begin : begin + len(piece)] == piece for begin in range(len(text)))


def proposed(drafter: SuffixDrafter, count: int = 16, step_tokens: int = 1) -> list[int]:
    found = drafter.propose(np.array([0]), np.array([count]), step_tokens)
    return found[0].tolist() if 0 in found else []


def test_drafts_grow_while_they_are_accepted_and_shrink_when_they_are_not() -> None:
    text = list(range(200))
    drafter = SuffixDrafter(1, ROOM)
    drafter.enter(0, np.array([*text, *text[:4]], dtype=np.int32), "")
    begin = 4
    for expected in (8, 16, 32):
        found = proposed(drafter, 40)
        assert found == text[begin : begin + expected]
        for token in found:
            drafter.extend(np.array([0]), np.array([token], dtype=np.int32))
        begin += expected
    assert len(proposed(drafter, 40)) == 40
    for token in [*text[begin : begin + 2], 999, *text[3:6]]:
        drafter.extend(np.array([0]), np.array([token], dtype=np.int32))
    assert proposed(drafter, 40) == text[6:9], "two were accepted"


def test_a_row_whose_drafts_are_all_rejected_rests_and_tries_again() -> None:
    drafter, asked = SuffixDrafter(1, ROOM), []
    drafter.enter(0, np.array([1, 2, 3], dtype=np.int32), "")
    for number in range(300):
        for token in (100 + number, 1, 2, 3):
            asked.append(bool(proposed(drafter)))
            drafter.extend(np.array([0]), np.array([token], dtype=np.int32))
    assert 4 <= sum(asked) < 40


def test_a_step_that_is_bound_by_computation_has_no_drafts() -> None:
    drafter = SuffixDrafter(1, ROOM, most_step_tokens=10)
    drafter.enter(0, np.array([1, 2, 3, 4, 5, 6, 1, 2, 3], dtype=np.int32), "")
    assert proposed(drafter, step_tokens=10) == []
    assert proposed(drafter, step_tokens=8) == [4, 5]
    assert proposed(drafter, 3, step_tokens=1) == [4, 5, 6]
