"""Evicted prefixes: found by their first units and their ends, the oldest forgotten first."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from quire.prefix import ghosts as module
from quire.prefix.ghosts import FEW, MOST_BACK, TIMES, Ghost, Ghosts


def keys(begin: int, end: int, name: str = "a") -> list[bytes]:
    """Of the units [begin, end) of a chain."""
    return [f"{name}{unit:07}".encode() for unit in range(begin, end)]


def ghost(end: bytes = b"", used: float = 0.0) -> Ghost:
    return Ghost(0, used, 0, 0, end, 0)


class Watched(Ghosts):
    """Notes which of its ghosts were forgotten without having been asked for."""

    def __init__(self) -> None:
        self.gone: list[Ghost] = []
        super().__init__(self.gone.append)

    def put(self, *runs: Sequence[bytes], is_end: bool = False) -> list[Ghost]:
        added = [ghost(run[-1] if is_end else b"") for run in runs]
        for run, one in zip(runs, added, strict=True):
            self.add(run, one)
        return added


# ── looking up ────────────────────────────────────────────────────────────


def test_one_is_shared_as_far_as_its_units_are_those_of_the_prompt() -> None:
    ghosts = Watched()
    (one,) = ghosts.put(keys(0, 5))
    assert list(ghosts.along(keys(0, 9), 0)) == [(0, 5, one)]
    assert list(ghosts.along(keys(0, 3), 0)) == [(0, 3, one)]
    assert list(ghosts.along(keys(0, 2) + keys(2, 9, "b"), 0)) == [(0, 2, one)]
    assert list(ghosts.along(keys(0, 9, "b"), 0)) == []
    assert list(ghosts.along([], 0)) == []


def test_those_that_follow_one_another_are_found_one_after_another() -> None:
    """A chain was evicted in three pieces, from its end on; the last of them alone is no longer remembered."""
    ghosts = Watched()
    last, middle, first = ghosts.put(keys(7, 9), keys(3, 7), keys(0, 3))
    assert list(ghosts.along(keys(0, 12), 0)) == [(0, 3, first), (3, 7, middle), (7, 9, last)]
    assert list(ghosts.along(keys(0, 12), 3)) == [(3, 7, middle), (7, 9, last)]
    assert ghosts.depth(keys(0, 12), 0) == ghosts.depth(keys(0, 12), 3) == 9
    prompt = keys(0, 5) + keys(5, 12, "b")
    assert list(ghosts.along(prompt, 0)) == [(0, 3, first), (3, 5, middle)]
    assert ghosts.depth(prompt, 0) == 5


def test_nothing_is_found_across_a_gap_and_what_is_known_is_never_less() -> None:
    ghosts = Watched()
    ghosts.put(keys(4, 8))
    assert ghosts.depth(keys(0, 12), 0) == 0
    assert ghosts.depth(keys(0, 12), 2) == 2
    assert ghosts.depth(keys(0, 12), 4) == 8
    assert ghosts.depth(keys(0, 12), 12) == 12
    assert ghosts.depth(keys(0, 5), 4) == 5


def test_a_prompt_of_a_hundred_thousand_units_is_followed_through_thousands_of_pieces() -> None:
    ghosts = Watched()
    pieces = [keys(begin, begin + 25) for begin in range(0, 100_000, 25)]
    added = ghosts.put(*reversed(pieces))[::-1]
    prompt = keys(0, 100_007)
    assert ghosts.depth(prompt, 0) == 100_000
    assert [one for _, _, one in ghosts.along(prompt, 0)] == added
    assert ghosts.depth(prompt[:70_011] + keys(70_011, 70_050, "b"), 0) == 70_011


def test_the_last_end_within_some_units_is_found() -> None:
    ghosts = Watched()
    ghosts.put(keys(0, 3), is_end=True)
    ghosts.put(keys(3, 7), is_end=True)
    ghosts.put(keys(7, 9))
    prompt = keys(0, 20)
    assert ghosts.last_end(prompt, 0, 9) == 6
    assert ghosts.last_end(prompt, 0, 7) == 6
    assert ghosts.last_end(prompt, 0, 6) == 2
    assert ghosts.last_end(prompt, 6, 20) == 6
    assert ghosts.last_end(prompt, 7, 20) is None
    assert ghosts.last_end(prompt, 3, 6) is None
    assert ghosts.last_end(prompt, 6, 6) is None
    assert Watched().last_end(prompt, 0, 20) is None


def test_one_is_found_by_any_of_its_units_if_it_began_not_far_before() -> None:
    ghosts = Watched()
    (one,) = ghosts.put(keys(10, 10 + 2 * MOST_BACK))
    prompt = keys(0, 20 + 2 * MOST_BACK)
    assert ghosts.over(prompt, 9) is None
    assert ghosts.over(prompt, 10) is ghosts.over(prompt, 11) is ghosts.over(prompt, 9 + MOST_BACK) is one
    assert ghosts.over(prompt, 10 + MOST_BACK) is None, "too far back"
    (short,) = ghosts.put(keys(0, 4, "b"))
    mixed = keys(0, 2, "b") + keys(2, 9, "c")
    assert ghosts.over(mixed, 1) is short
    assert ghosts.over(mixed, 2) is None, "it parted from it before"


def test_of_several_that_have_a_unit_the_nearest_is_found() -> None:
    ghosts = Watched()
    ghosts.put(keys(0, 9))
    (near,) = ghosts.put(keys(4, 6))
    assert ghosts.over(keys(0, 9), 5) is near


def test_first_units_and_ends_name_their_own() -> None:
    ghosts = Watched()
    (one,), (other,) = ghosts.put(keys(0, 3), is_end=True), ghosts.put(keys(3, 5))
    assert ghosts.first(keys(0, 1)[0]) is one
    assert ghosts.first(keys(3, 4)[0]) is other
    assert ghosts.first(keys(1, 2)[0]) is None
    assert ghosts.at_end(keys(2, 3)[0]) is one
    assert ghosts.at_end(keys(4, 5)[0]) is None, "a hit could have ended anywhere in it"
    assert ghosts.at_end(b"") is None


# ── the same units again ──────────────────────────────────────────────────


def test_units_that_are_evicted_again_are_those_of_the_latest() -> None:
    ghosts = Watched()
    ghosts.put(keys(0, 5), is_end=True)
    (later,) = ghosts.put(keys(0, 5), is_end=True)
    assert list(ghosts.along(keys(0, 9), 0)) == [(0, 5, later)]
    assert ghosts.first(keys(0, 1)[0]) is ghosts.at_end(keys(4, 5)[0]) is later
    assert len(ghosts) == 10


def test_forgetting_an_older_one_leaves_the_later_one_of_the_same_units(monkeypatch: pytest.MonkeyPatch) -> None:
    ghosts = Watched()
    (earlier,), (later,) = ghosts.put(keys(0, 5), is_end=True), ghosts.put(keys(0, 5), is_end=True)
    monkeypatch.setattr(module, "FEW", 5)
    ghosts.limit(0)
    assert ghosts.gone == [earlier]
    assert ghosts.depth(keys(0, 9), 0) == 5
    assert ghosts.first(keys(0, 1)[0]) is ghosts.at_end(keys(4, 5)[0]) is later


# ── forgetting ────────────────────────────────────────────────────────────


def test_the_oldest_are_forgotten_first_and_no_more_than_must_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FEW", 10)
    ghosts = Watched()
    names = "abcdef"
    added = ghosts.put(*(keys(0, 4, name) for name in names))
    ghosts.limit(0)
    assert ghosts.gone == added[:4]
    assert len(ghosts) == 8
    assert [ghosts.depth(keys(0, 4, name), 0) for name in names] == [0, 0, 0, 0, 4, 4]
    ghosts.limit(0)
    assert ghosts.gone == added[:4], "once"


def test_more_are_remembered_the_more_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FEW", 10)
    ghosts = Watched()
    ghosts.put(*(keys(0, 4, name) for name in "abcdef"))
    ghosts.limit(24 // TIMES)
    assert ghosts.gone == []
    ghosts.limit(24 // TIMES - 1)
    assert len(ghosts.gone) == 1
    assert len(ghosts) == 20


def test_as_many_as_promised_are_remembered_whatever_is_cached() -> None:
    ghosts = Watched()
    pieces = [keys(begin, begin + 64) for begin in range(0, FEW + 640, 64)]
    added = ghosts.put(*pieces)
    ghosts.limit(0)
    assert len(ghosts) == FEW
    assert ghosts.gone == added[:10]
    assert ghosts.depth(keys(0, FEW + 640), 640) == FEW + 640


def test_those_that_were_asked_for_are_not_reported_when_they_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FEW", 0)
    ghosts = Watched()
    added = ghosts.put(keys(0, 4, "a"), keys(0, 4, "b"), keys(0, 4, "c"))
    added[1].is_counted = True
    ghosts.limit(0)
    assert ghosts.gone == [added[0], added[2]]
    assert all(one.is_counted for one in added), "none is counted after it was given up"
    assert len(ghosts) == 0


def test_forgotten_ones_are_found_in_no_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FEW", 0)
    ghosts = Watched()
    ghosts.put(keys(0, 4), is_end=True)
    ghosts.limit(0)
    prompt = keys(0, 9)
    assert ghosts.depth(prompt, 0) == 0
    assert ghosts.last_end(prompt, 0, 9) is None
    assert ghosts.over(prompt, 2) is ghosts.first(prompt[0]) is ghosts.at_end(prompt[3]) is None
    assert ghosts.live() == []


def test_those_of_a_scope_are_forgotten_and_others_stay() -> None:
    """Nothing is learned from them: their owner wanted them gone."""
    ghosts = Watched()
    mine = ghosts.put(keys(0, 4, "mine"), keys(4, 9, "mine"), is_end=True)
    (other,) = ghosts.put(keys(0, 4, "other"), is_end=True)
    ghosts.forget(b"mine")
    assert len(ghosts) == 4
    assert ghosts.live() == [other]
    assert ghosts.depth(keys(0, 9, "mine"), 0) == 0
    assert ghosts.last_end(keys(0, 9, "mine"), 0, 9) is None
    assert ghosts.depth(keys(0, 9, "other"), 0) == 4
    assert ghosts.gone == []
    assert not any(one.is_counted for one in mine)
    ghosts.forget(b"")
    assert len(ghosts) == 0
    assert ghosts.live() == []


def test_the_limit_counts_rightly_after_a_scope_was_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FEW", 8)
    ghosts = Watched()
    ghosts.put(keys(0, 4, "mine"))
    oldest, *_ = ghosts.put(keys(0, 4, "x"), keys(0, 4, "y"))
    ghosts.forget(b"mine")
    ghosts.limit(0)
    assert ghosts.gone == []
    ghosts.put(keys(0, 1, "z"))
    ghosts.limit(0)
    assert ghosts.gone == [oldest]


def test_those_that_were_counted_are_not_watched_on() -> None:
    ghosts = Watched()
    one, other = ghosts.put(keys(0, 4), keys(0, 4, "b"))
    one.is_counted = True
    assert ghosts.live() == [other]
    assert ghosts.depth(keys(0, 4), 0) == 4, "but still remembered"


@pytest.mark.story
def test_what_was_evicted_beyond_units_that_are_cached_again_is_found() -> None:
    """A prompt of ten units was evicted in one piece, and another one brought the first four of them back: the other
    six were computed before, though the piece does not begin with them."""
    ghosts = Watched()
    (one,) = ghosts.put(keys(0, 10))
    assert ghosts.depth(keys(0, 12), 4) == 10
    assert list(ghosts.along(keys(0, 12), 4)) == [(4, 10, one)]
    assert ghosts.depth(keys(0, 6) + keys(6, 9, "b"), 4) == 6
    assert ghosts.depth(keys(0, 4) + keys(4, 9, "b"), 4) == 4
