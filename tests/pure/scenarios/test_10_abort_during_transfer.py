"""Abort during transfer: a load owns staging memory alone, whenever its request goes and however it ends."""

from __future__ import annotations

import pytest
from disturbed import MIXES, Disturbed
from scenes import FreeRunner, World, ask, paged_plan

from quire.check.promises import check_nothing_left
from quire.core.events import LoadFailed, LoadFinished, LoadStarted
from quire.core.request import Ending
from quire.core.step import Step
from quire.core.tier import TransferDone
from quire.tiers.in_memory import NEVER


@pytest.mark.parametrize("aborts", [250, pytest.param(1000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("names", MIXES, ids=" ".join)
def test_after_random_aborts_nothing_is_held_and_no_request_read_foreign_bytes(names: list[str], aborts: int) -> None:
    """Requests are aborted while they wait, load and run. Loads finish, fail, come late or never; what they bring goes
    into pages of the request that asked for it or nowhere. Every read is checked, the books are counted at every step,
    and after the last request nothing is held."""
    world = Disturbed(names, seed=len(names))
    while world.aborts.total() < aborts:
        while len(world.engine.streams) < 8:
            world.submit()
        world.step()
        if world.random.random() < 0.8:
            world.abort()
    survivors = list(world.engine.streams.values())
    while world.engine.scheduler.flying or world.engine.streams:
        world.step()
    assert all(one.ending is Ending.LENGTH for one in survivors)
    assert min(world.aborts[where] for where in ("waiting", "loading", "running")) > aborts // 20, world.aborts
    assert min(world.told[what] for what in (LoadStarted, LoadFinished, LoadFailed)) > aborts // 50, world.told
    check_nothing_left(world.engine.scheduler)


class Crowded(World):
    """X loads 64 of its tokens; E and Y, who is preferred, have all the rest of the pool, and nobody can compute."""

    def __init__(self) -> None:
        self.noted = LoadsNoted()
        super().__init__(paged_plan(11, rows=4), self.noted, load_seconds=NEVER)
        self.engine.scheduler.admission.typical_output = 1.0
        self.submit(ask("E", 30, 10))
        self.step()
        self.submit(ask("X", 70, 10), on_tier_tokens=64)
        self.step()
        self.row = self.engine.scheduler.rows.row_of["X"]
        self.submit(ask("Y", 60, 10, priority=9))
        for _ in range(8):
            self.step()

    def give_the_row_to_another(self) -> None:
        """X is aborted, and Z gets its row."""
        self.engine.cancel("X")
        self.submit(ask("Z", 20, 3))
        self.step()
        assert self.engine.scheduler.rows.row_of["Z"] == self.row
        self.run(100)

    def finish_load(self) -> None:
        self.tier.answer(TransferDone(0))


def test_what_came_for_a_request_that_is_gone_goes_to_nobody() -> None:
    """The load is done, and X is aborted before anyone asked how it went."""
    world = Crowded()
    world.finish_load()
    world.give_the_row_to_another()
    assert world.told(LoadFinished) == world.noted.loads == []


def test_what_came_goes_to_its_pages_though_nobody_can_compute_and_never_again() -> None:
    """X has its pages: a step of nothing else takes the load along. Z, who gets the row, finds nothing of it."""
    world = Crowded()
    world.finish_load()
    world.step()
    assert world.told(LoadFinished) == ["X"]
    assert [row for _, row in world.noted.loads] == [world.row]
    world.give_the_row_to_another()
    assert len(world.noted.loads) == 1


class LoadsNoted(FreeRunner):
    """Notes every (load, row) that a step brings to its pages."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[tuple[int, int]] = []

    def launch(self, step: Step) -> None:
        self.loads += step.loads
        super().launch(step)
