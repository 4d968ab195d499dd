"""The exploration checked: it loses no state, merges none that differ, and finds what is planted."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest

from examples import rest_in_soak
from quire.check.exhaustive import explore_all
from quire.check.explore import Explored, World, explore
from quire.check.mutations import planted
from quire.check.small import SHORT, SYSTEMS, URGENT, Small
from quire.check.snapshot import Snapshots
from quire.core.rules import Policy

DOCS = Path(__file__).parents[3] / "docs" / "check.md"
LONG = {
    *("window and sink, a tier", "latent and window, fair", "full and state, a tier"),
    *("window and chunked, pages of 2", "full and window, a tier", "full and window, evicted and compacted"),
    "full and window on two stages",
}
"""Seconds each: `make soak` explores these, and every test run the same without the third request."""
QUICK = [
    replace(small, name=f"{small.name}, two requests", requests=small.requests[:2]) if small.name in LONG else small
    for small in SHORT
]
MIXED = Small("mixed", (("full", 1), ("window", 2), ("state", 3)), 6, (("abc", 2, 0), ("abd", 2, 1)), stored=1)
TIGHT = Small("tight", (("full", 1), ("window", 2)), 5, (("abcd", 2, 0), ("abe", 2, 1), ("ab", 2, 0)), rows=3)
AWAY = Small("away", (("full", 1), ("state", 3)), 6, (("ab", 1, 0), ("0c", 1, 1)), stored=4, is_away=True, evicts=True)
GUESSING = Small("guessing", (("full", 1), ("state", 3)), 6, (("abc", 3, 0), ("abd", 2, 1)), lookahead=1)


@pytest.mark.parametrize(
    "small",
    rest_in_soak([*QUICK, *(small for small in SHORT if small not in QUICK)], QUICK),
    ids=lambda small: small.name,
)
def test_no_schedule_is_stuck_or_leaks(small: Small) -> None:
    found = explore(small)
    assert found.violation == ""
    assert found.is_complete
    assert found.ends > 0


def test_the_long_list_keeps_within_what_it_says() -> None:
    text = DOCS.read_text()
    for small in SYSTEMS:
        assert f"| {small.name} |" in text
        assert small.sheets - small.leases <= 12
        assert len(small.requests) <= 3
        assert len(small.kinds) <= 3
        assert small.page_tokens in (1, 2)
        assert all(len(prompt) <= 6 and outputs <= 3 for prompt, outputs, _ in small.requests)
        assert small.plan().fits


@pytest.mark.parametrize(
    "small", rest_in_soak([MIXED, GUESSING, TIGHT, AWAY], [MIXED, GUESSING]), ids=lambda small: small.name
)
def test_states_that_are_merged_have_the_same_future(small: Small) -> None:
    """Whatever happens next leads from both to states that are merged as well."""
    world = World(small)
    snapshots, futures, merged = Snapshots(world), {}, 0
    waiting = [snapshots.keep()]
    while waiting:
        kept = waiting.pop()
        snapshots.restore(kept)
        digest, actions, after = world.digest(), [] if world.is_over() else world.actions(), {}
        states = []
        for action in actions:
            snapshots.restore(kept)
            world.do(action)
            after[action] = world.digest()
            states.append(snapshots.keep())
        if digest in futures:
            merged += 1
            assert futures[digest] == after
        else:
            futures[digest] = after
            waiting += states
    assert merged > 100


def test_a_state_comes_back_as_it_was() -> None:
    world = World(MIXED)
    snapshots = Snapshots(world)
    for action in (("submit", 0), ("submit", 1), ("schedule", 0)):
        world.do(action)
    kept, before = snapshots.keep(), world.digest()
    for action in (("apply", 0), ("schedule", 0), ("abort", 0), ("schedule", 0)):
        if action in world.actions():
            world.do(action)
    assert world.digest() != before
    snapshots.restore(kept)
    assert world.digest() == before
    snapshots.check_complete()


PLANTED = {
    "settle-missed": TIGHT,
    "stale-result-applied": TIGHT,
    "hold-counted-twice": TIGHT,
    "bound-one-short": Small("one sheet short", (("full", 1),), 3, (("ab", 2, 0), ("c", 2, 0)), lookahead=1),
    "elder-not-first": Small("strangers", (("full", 1),), 6, (("ab", 1, 0), ("cd", 1, 1)), batch_tokens=1),
    "load-waits-for-ever": MIXED,
    "drafts-settle": GUESSING,
}


@pytest.mark.parametrize("name", PLANTED)
def test_the_exploration_finds_planted_bugs(name: str) -> None:
    with planted(name):
        found = explore(PLANTED[name])
    assert found.violation
    assert found.path[0] == "submit 0"


def test_a_bug_is_planted_in_every_process_however_they_are_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that are not forked share nothing with whoever planted it."""
    fresh = partial(ProcessPoolExecutor, mp_context=get_context("spawn"))
    monkeypatch.setattr("quire.check.exhaustive.ProcessPoolExecutor", fresh)
    told: list[Explored] = []
    found = explore_all([TIGHT, TIGHT], 2, 60.0, told.append, "settle-missed")
    assert found == told
    assert all(one.violation for one in found)


@pytest.mark.soak
def test_priority_decides_more_than_who_is_the_elder() -> None:
    """Else every system would go through the same states without it."""
    small = next(one for one in SHORT if one.requests is URGENT)
    assert small.policy is Policy.PRIORITY
    assert explore(small).states != explore(replace(small, policy=Policy.FIRST_COME)).states
