"""A connector behind its guard: how often it is tried, and what is said."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from quire.core.connector import TierFailed
from quire.tiers.guarded import GuardedTier
from scenes_of_tiers import LAYOUT, Drawer

RECORD = [memoryview(bytes(8192))]


class NearlyFull(Drawer):
    """Has room for what it is tried with, and for nothing larger until there is."""

    has_room = False

    def write(self, name: bytes, parts: Sequence[memoryview]) -> None:
        if sum(map(len, parts)) > 4096 and not self.has_room:
            raise TierFailed("no space left")
        super().write(name, parts)


class World:
    def __init__(self) -> None:
        self.now = 0.0
        self.drawer = NearlyFull()
        self.tier = GuardedTier(self.drawer, LAYOUT, lambda: self.now)
        self.tier.mend()

    def pass_seconds(self, seconds: int) -> int:
        """Somebody writes every second; how often the tier was tried again meanwhile."""
        tried = 0
        for second in range(seconds):
            self.now += 1.0
            if self.tier.take_turn():
                tried += 1
                self.tier.mend()
            self.tier.write(b"record %d" % second, RECORD)
        return tried


@pytest.mark.story
def test_a_disk_with_room_for_the_trial_alone_is_tried_less_and_less_often(caplog: pytest.LogCaptureFixture) -> None:
    """After 1, 2, 4, … seconds, then every minute: not every second, with two lines in the log each time."""
    world = World()
    with caplog.at_level(logging.WARNING, "quire.tiers"):
        assert world.pass_seconds(600) <= 16
    assert len(caplog.records) <= 34
    assert world.tier.can_read


def test_once_a_record_was_written_the_next_failure_is_tried_again_soon() -> None:
    world = World()
    world.pass_seconds(200)
    world.drawer.has_room = True
    world.pass_seconds(120)
    assert world.tier.can_write
    world.drawer.has_room = False
    assert world.pass_seconds(10) >= 2


@pytest.mark.story
def test_calls_under_way_when_it_is_lost_are_one_outage(caplog: pytest.LogCaptureFixture) -> None:
    """32 prompts wait for a peer that restarts: it is tried again after a second, as the log says."""
    world = World()

    def fail() -> None:
        raise TierFailed("gone")

    with caplog.at_level(logging.WARNING, "quire.tiers"):
        for _ in range(32):
            world.tier.attempt("hand over", fail)
    assert [record.getMessage() for record in caplog.records] == [
        "tier drawer: cannot hand over: gone; goes on without it, tries again in 1 s"
    ]
    assert world.tier.status().failures == {"hand over": 32}
    world.now += 1.0
    assert world.tier.take_turn()
    world.tier.mend()
    assert world.tier.can_read


class Mumbler(Drawer):
    """Answers for other than the names it was asked for, once it was registered."""

    answer: object = [True]

    def has(self, names: Sequence[bytes]) -> list[bool]:
        return super().has(names) if names == [b"probe"] else self.answer  # type: ignore[return-value]


@pytest.mark.story
@pytest.mark.parametrize("answer", [[True], [True] * 3, (True, True), None, 7])
def test_a_lookup_that_does_not_answer_for_each_name_is_a_failure_of_the_tier(answer: object) -> None:
    drawer = Mumbler()
    drawer.answer = answer
    tier = GuardedTier(drawer, LAYOUT, lambda: 0.0)
    tier.mend()
    assert tier.can_read
    assert tier.has([b"one", b"two"]) == [False, False]
    assert not tier.can_read
    assert "2 names" in tier.reason


def test_before_it_is_registered_it_is_neither_read_nor_written_and_due_at_once() -> None:
    tier = GuardedTier(Drawer(), LAYOUT, lambda: 0.0)
    status = tier.status()
    assert not status.can_read
    assert not status.can_write
    assert tier.take_turn()
    tier.mend()
    assert tier.can_read
    assert tier.can_write
