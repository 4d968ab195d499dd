"""A cache that is dropped is dropped on every tier: nothing that was computed before is found again, by nobody."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pytest

from quire.core.request import Request
from quire.core.tier import is_of
from quire.prefix.keys import scope_of
from quire.tiers.host_loads import Progress
from scenes_of_tiers import Drawer, World

PROMPT = np.arange(100)
MIXES = [["full"], ["full", "window"], ["state", "full", "chunked"], ["state"]]


class Archive(Drawer):
    """A drawer that can tell whose records are whose, if it has its day."""

    is_stuck = False

    def __init__(self) -> None:
        super().__init__()
        self.order: list[str] = []
        """Of what was asked of it."""

    def write(self, name: bytes, parts: Sequence[memoryview]) -> None:
        super().write(name, parts)
        self.order.append("write")

    def forget(self, scope: bytes) -> None:
        self.calls["forget"] += 1
        self.order.append("forget")
        if self.is_stuck:
            raise OSError("the drawer is stuck")
        for name in [name for name in self.kept if is_of(name, scope)]:
            del self.kept[name]


@pytest.mark.story
@pytest.mark.parametrize("names", MIXES, ids=" ".join)
@pytest.mark.parametrize("has_tier_below", [False, True])
def test_what_was_dropped_is_loaded_from_no_tier(names: list[str], has_tier_below: bool) -> None:
    world = World(names, [Archive()] * has_tier_below, blocks=128)
    for scope in ("one", "two"):
        world.ask(f"{scope} first", PROMPT, scope=scope)
    world.engine.drop_cache("one")
    world.drop_cache()
    world.ask("one again", PROMPT, scope="one")
    assert world.loaded() == []
    world.ask("two again", PROMPT, scope="two")
    assert world.loaded() == [96]
    world.engine.drop_cache()
    world.ask("two at last", PROMPT, scope="two")
    assert world.loaded() == [96]
    world.check_nothing_is_held()


@pytest.mark.story
def test_another_engine_on_the_same_tier_finds_nothing_of_what_was_dropped() -> None:
    archive = Archive()
    world = World(["full", "window"], [archive], blocks=128)
    for scope in ("one", "two"):
        world.ask(scope, PROMPT, scope=scope)
    world.engine.drop_cache("one")
    world.stack.flush()
    restarted = World(["full", "window"], [archive], blocks=128)
    for scope in ("one", "two"):
        restarted.ask(scope, PROMPT, scope=scope)
    assert restarted.loaded() == [96]
    world.check_nothing_is_held()


def test_what_is_on_its_way_out_when_its_scope_is_dropped_goes_nowhere() -> None:
    """Writes that wait, and stores that the next step will copy."""
    archive = Archive()
    world = World(["full"], [archive], blocks=64)
    archive.gate.clear()
    world.ask("written", PROMPT, scope="one")
    world.engine.submit(Request("stored", (1000 + PROMPT).astype(np.int32), 3, scope="one"))
    while not len(world.stack.stores) and world.engine.step():
        pass
    world.engine.drop_cache("one")
    archive.gate.set()
    world.engine.drain()
    world.engine.drop_cache("one")
    world.stack.flush()
    assert not archive.kept
    assert not len(world.stack.held.cache)
    assert world.stack.below[0].pinned_blocks == 0
    world.check_nothing_is_held()


@pytest.mark.story
@pytest.mark.parametrize("is_stuck", [False, True])
def test_a_tier_forgets_behind_the_write_under_way_however_many_wait(is_stuck: bool) -> None:
    """Behind all of them was never, with a tier slower than the traffic. One that fails is not asked each time."""
    archive = Archive()
    world = World(["full"], [archive], blocks=128)
    archive.order.clear()
    archive.gate.clear()
    for scope in ("one", "two"):
        world.ask(scope, PROMPT, scope=scope)
    while world.stack.below[0]._begun_at is None:
        time.sleep(0.001)
    archive.is_stuck = is_stuck
    world.engine.drop_cache("one")
    archive.gate.set()
    world.stack.flush()
    assert archive.order == (["write", "forget", "forget"] if is_stuck else ["write", "forget"] + ["write"] * 12)
    assert len(archive.kept) == (1 if is_stuck else 12)
    world.check_nothing_is_held()


def test_a_load_that_is_under_way_when_its_scope_is_dropped_leaves_nothing_in_host_memory() -> None:
    archive = Archive()
    world = World(["full"], [archive], blocks=64)
    world.ask("cold", PROMPT, scope="one")
    world.forget()
    archive.gate.clear()
    stream = world.engine.submit(Request("warm", PROMPT.astype(np.int32), 3, scope="one"))
    while not world.stack.loads._open:
        world.engine.step()
    world.engine.drop_cache("one")
    assert not world.engine.scheduler.reuse.index.nodes.leaves().size
    before = set(world.stack.held.cache._records)
    archive.gate.set()
    while any(one.progress is not Progress.STAGED for one in world.stack.loads._open.values()):
        time.sleep(0.001)
    assert set(world.stack.held.cache._records) == before
    world.engine.drain()
    assert stream.ended is not None
    world.check_nothing_is_held()


def test_a_tier_that_cannot_forget_now_is_not_asked_for_that_scope_until_it_did() -> None:
    archive = Archive()
    world = World(["full"], [archive], blocks=64)
    for scope in ("one", "two"):
        world.ask(scope, PROMPT, scope=scope)
    world.stack.flush()
    archive.is_stuck = True
    world.engine.drop_cache("one")
    world.stack.flush()
    assert archive.calls["forget"] == 1
    assert len(archive.kept) == 24
    world.forget()
    for scope in ("one", "two"):
        world.ask(f"{scope} again", PROMPT, scope=scope)
    assert world.loaded() == [96]
    archive.is_stuck = False
    world.now += 100.0
    world.ask("somebody else", 5000 + PROMPT)
    behind = world.stack.below[0]
    while behind._to_forget:
        time.sleep(0.001)
    world.stack.flush()
    one, two = (scope_of(world.engine.scheduler.reuse.root_of(scope)) for scope in ("one", "two"))
    assert [sum(is_of(name, scope) for name in archive.kept) for scope in (one, two)] == [0, 12]
    world.check_nothing_is_held()


@pytest.mark.story
def test_a_tier_that_has_not_forgotten_yet_is_named_until_it_has() -> None:
    """Who drops a cache again is told whether it was dropped the last time."""
    archive = Archive()
    world = World(["full"], [archive], blocks=64)
    world.ask("one", PROMPT, scope="one")
    world.stack.flush()
    assert world.stack.keeping() == []
    archive.is_stuck = True
    world.engine.drop_cache("one")
    world.stack.flush()
    assert world.stack.keeping() == ["drawer"]
    archive.is_stuck = False
    world.now += 100.0
    world.ask("somebody else", 5000 + PROMPT)
    while world.stack.below[0]._to_forget:
        time.sleep(0.001)
    assert world.stack.keeping() == []
    world.check_nothing_is_held()


@pytest.mark.story
@pytest.mark.parametrize("is_down", [False, True])
def test_a_tier_that_cannot_be_asked_now_is_named(is_down: bool) -> None:
    """It is down, or a write has not returned for so long that nobody waits for it."""
    archive = Archive()
    world = World(["full"], [archive], blocks=64)
    archive.gate.clear()
    world.ask("one", PROMPT, scope="one")
    behind = world.stack.below[0]
    while behind._begun_at is None:
        time.sleep(0.001)
    assert world.stack.keeping() == []
    if is_down:
        behind.tier.attempt("look", refuse)
    else:
        world.now += 100.0
        behind.turn()
    assert world.stack.keeping() == ["drawer"]
    archive.gate.set()
    world.check_nothing_is_held()


def refuse() -> None:
    raise OSError("nobody is there")


def test_a_tier_that_cannot_forget_at_all_is_named() -> None:
    world = World(["full"], [Archive(), Drawer()], blocks=64)
    assert world.stack.keeping() == ["drawer"]
