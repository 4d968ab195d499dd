"""A step that fails takes nothing with it but those who run: tiers keep what they have, and hold nothing for it."""

from __future__ import annotations

import numpy as np
import pytest

from quire.core.request import Ending, Request
from quire.core.step import Step
from quire.core.tier import is_of
from scenes_of_tiers import Drawer, World

MIXES = [["full"], ["full", "window"], ["state", "full", "chunked"]]


class OutOfMemory(Exception):
    pass


class Forgetful(Drawer):
    def forget(self, scope: bytes) -> None:
        self.kept = {name: record for name, record in self.kept.items() if not is_of(name, scope)}


def fail_at(world: World, what: str) -> None:
    """The next step with stores, or with loads, fails before it has copied anything."""
    launch = world.runner.launch

    def faulty(step: Step) -> None:
        if getattr(step, what):
            world.runner.launch = launch  # type: ignore[method-assign]
            raise OutOfMemory
        launch(step)

    world.runner.launch = faulty  # type: ignore[method-assign]


@pytest.mark.parametrize("names", MIXES, ids=" ".join)
def test_room_for_what_it_should_have_stored_is_free_again(names: list[str]) -> None:
    drawer = Drawer()
    world = World(names, [drawer], blocks=64)
    for turn in range(4):
        world.engine.submit(Request(f"failing {turn}", np.arange(100, dtype=np.int32) + 1000 * turn, 3))
        fail_at(world, "stores")
        with pytest.raises(OutOfMemory):
            world.engine.drain()
        world.engine.drain()
        assert not world.stack.below[0].pinned_blocks
        world.check_nothing_is_held()
    world.ask("healthy", np.arange(100) + 5000)
    world.forget()
    world.ask("again", np.arange(100) + 5000)
    assert world.loaded() == [96]


@pytest.mark.parametrize("names", MIXES, ids=" ".join)
def test_room_for_what_it_should_have_loaded_is_free_again(names: list[str]) -> None:
    world = World(names, [], blocks=64)
    world.ask("cold", np.arange(100))
    world.drop_cache()
    stream = world.engine.submit(Request("warm", np.arange(100, dtype=np.int32), 3))
    staged = world.stack.staged_load

    def faulty(number: int) -> object:
        staged(number)
        world.stack.staged_load = staged  # type: ignore[method-assign]
        raise OutOfMemory

    world.stack.staged_load = faulty  # type: ignore[method-assign, assignment]
    with pytest.raises(OutOfMemory):
        world.engine.drain()
    assert stream.ending is Ending.CANCELLED
    world.check_nothing_is_held()
    world.ask("once more", np.arange(100))
    assert world.loaded()[-1] == 96


def test_records_of_everyone_stay_where_they_are() -> None:
    drawer = Forgetful()
    other, world = World(["full"], [drawer], blocks=64), World(["full"], [drawer], blocks=64)
    other.ask("theirs", np.arange(100), scope="theirs")
    other.stack.flush()
    kept = set(drawer.kept)
    world.engine.submit(Request("failing", np.arange(100, dtype=np.int32) + 1000, 3))
    fail_at(world, "tokens")
    with pytest.raises(OutOfMemory):
        world.engine.drain()
    world.stack.flush()
    assert kept <= set(drawer.kept)
    assert len(kept) >= 12


def test_what_failed_in_an_abandoned_step_ends_nobody_else() -> None:
    world = World(["full"], [], blocks=64)
    world.engine.submit(Request("failing", np.arange(100, dtype=np.int32), 3))
    fail_at(world, "tokens")
    world.engine.failures.report(0, "its grammar has grown too large")
    with pytest.raises(OutOfMemory):
        world.engine.step()
    world.ask("next", np.arange(100) + 1000)
