"""What waits to be written below host memory: how much of it, in which order, and what becomes of the rest."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import numpy as np
import pytest

from quire.tiers.lower_tier import LATE_SECONDS
from scenes_of_tiers import Drawer, World, until


class SlowDrawer(Drawer):
    """Takes its time for each record."""

    def write(self, name: bytes, parts: Sequence[memoryview]) -> None:
        time.sleep(0.002)
        super().write(name, parts)


@pytest.mark.story
@pytest.mark.parametrize(
    ("names", "blocks"), [(["full"], 16), (["full"], 20), (["full", "window"], 28), (["state", "full", "chunked"], 32)]
)
def test_a_prefix_larger_than_half_of_host_memory_comes_back_from_a_slow_tier(names: list[str], blocks: int) -> None:
    """Its beginning was always what was not written, so nothing of it was ever found."""
    drawer = SlowDrawer()
    world = World(names, [drawer], blocks=blocks)
    world.ask("cold", np.arange(100), outputs=1)
    world.forget()
    world.ask("warm", np.arange(100), outputs=1)
    assert world.loaded() == [96]
    world.check_nothing_is_held()


def test_a_slow_tier_below_does_not_fill_host_memory_and_gets_the_beginning_of_each_prefix() -> None:
    """What waits to be written pins half of it at most; what had to make room for others is counted."""
    drawer = Drawer()
    world = World(["full"], [drawer], blocks=16)
    drawer.gate.clear()
    world.ask("first", np.arange(100))
    assert world.stack.below[0].pinned_blocks == 8
    world.ask("second", 1000 + np.arange(100))
    assert world.stack.below[0].pinned_blocks == 8
    drawer.gate.set()
    world.forget()
    assert len(drawer.kept) == 16
    assert world.stack.counters["not_written_behind"] == 4
    for name, begin in (("first again", 0), ("second again", 1000)):
        world.ask(name, begin + np.arange(100))
    assert world.loaded() == [64, 64]
    world.check_nothing_is_held()


def test_each_record_that_had_to_make_room_for_a_newer_one_is_counted_once() -> None:
    """Beyond what was promised, as many records wait as host memory has blocks. Half of it is pinned, so that 8 records
    of each later prompt find a place."""
    drawer = Drawer()
    world = World(["full"], [drawer], blocks=16)
    drawer.gate.clear()
    for number in range(4):
        world.ask(f"r{number}", 1000 * number + np.arange(100))
    assert world.stack.counters["not_written_behind"] == (12 - 8) + 3 * 8 - 16
    drawer.gate.set()


@pytest.mark.story
def test_a_write_that_never_returns_keeps_no_other_tier_from_being_written_to_or_mended() -> None:
    hung, other = Drawer(), Drawer()
    world = World(["full"], [hung, other], blocks=64)
    hung.gate.clear()
    world.ask("first", np.arange(100))
    until(lambda: len(other.kept) == 12)
    tier = world.stack.tiers[1]
    tier.attempt("stand", lambda: 1 // 0)
    assert not tier.can_write
    world.now += 500.0
    world.ask("second", 1000 + np.arange(100))
    until(lambda: tier.can_write)
    world.ask("third", 2000 + np.arange(100))
    until(lambda: len(other.kept) >= 24)
    hung.gate.set()
    world.check_nothing_is_held()


@pytest.mark.story
def test_a_write_that_never_returns_is_told_and_pins_nothing_but_its_own_record(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "quire.tiers")
    drawer = Drawer()
    world = World(["full"], [drawer], blocks=64)
    drawer.gate.clear()
    world.ask("first", np.arange(100))
    behind = world.stack.below[0]
    until(lambda: behind._begun_at is not None)
    assert behind.pinned_blocks == 12
    world.now += LATE_SECONDS
    behind.turn()
    assert not behind.is_late
    world.now += 1
    world.ask("second", 1000 + np.arange(100))
    assert (behind.is_late, behind.pinned_blocks) == (True, 1)
    assert "a write has not returned for 60 s" in caplog.text
    drawer.gate.set()
    until(lambda: not behind.is_late)
    world.ask("third", 2000 + np.arange(100))
    world.stack.flush()
    assert len(drawer.kept) == 1 + 12
    world.check_nothing_is_held()


def test_tiers_below_share_what_may_wait() -> None:
    drawers = [Drawer(), Drawer()]
    world = World(["full"], drawers, blocks=16)
    for drawer in drawers:
        drawer.gate.clear()
    world.ask("first", np.arange(100))
    assert [behind.pinned_blocks for behind in world.stack.below] == [4, 4]
    for drawer in drawers:
        drawer.gate.set()
    world.check_nothing_is_held()
    assert [len(drawer.kept) for drawer in drawers] == [12, 12]


def test_what_waits_is_written_before_the_end() -> None:
    drawer = SlowDrawer()
    world = World(["full"], [drawer], blocks=16)
    world.ask("first", np.arange(100))
    world.stack.close()
    assert len(drawer.kept) == 12
    assert not world.stack.below[0].writer.alive()
