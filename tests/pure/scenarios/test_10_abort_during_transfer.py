"""Abort during transfer: a load owns staging memory alone, whenever its request goes and however it ends."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest
from scenes import FreeRunner, KeyedTier, World, ask, paged_plan

from quire.check.doubles import FaultyTier
from quire.check.promises import check_books, check_nothing_left
from quire.check.scripts import script_for
from quire.check.shadow import ShadowRunner
from quire.core.events import Event, LoadFailed, LoadFinished, LoadStarted
from quire.core.request import Ending, Request
from quire.core.rules import Rules
from quire.core.step import Step
from quire.core.tier import Load
from quire.engine.engine import Engine
from quire.models.shape import ModelShape
from quire.plan import bound
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings
from small_kinds import KINDS

LENGTH, ABORTS, LOAD_SECONDS, ROWS = 150, 1000, 5.0, 4
SPARE_SHEETS = 4
"""Beyond what a lone request of the longest length needs: little, so that rows are short of pages all the time."""
MIXES = [["full", "window"], ["state", "full", "chunked"]]


def plan_of(names: list[str]) -> Plan:
    layers = tuple(KINDS[name] for name in names)
    shape = ModelShape("small", "test", layers, max_length=LENGTH, weights_known=False)
    settings = Settings(batch_tokens=48, max_requests=ROWS, page_tokens={"": 8}, match_unit_tokens=8)
    roomy = make_plan(shape, settings, Budget(sheets=(1000,)))
    return make_plan(shape, settings, Budget(sheets=(SPARE_SHEETS + bound.minimum(roomy.stages[0].kinds, LENGTH, 0),)))


class NotedTier(FaultyTier):
    """Remembers whose each load was."""

    loads: dict[int, Load]

    def begin(self, load: Load) -> None:
        self.loads[load.number] = load
        super().begin(load)


class Disturbed:
    """An engine whose tier brings prefixes, fails, answers late or never; requests come and are aborted at random."""

    def __init__(self, names: list[str], seed: int) -> None:
        self.random, self.now = Random(seed), 0.0
        self.runner = ShadowRunner()
        self.runner.before_launch = self._check_owners
        self.tier = NotedTier(self.random, lambda: self.now, LOAD_SECONDS, self.runner.staged)
        self.tier.loads = {}
        self.engine = Engine(
            plan_of(names),
            self.runner,
            rules=Rules(load_seconds=LOAD_SECONDS),
            tier=self.tier,
            clock=lambda: self.now,
            pause=lambda: None,
            listeners=[self._count],
        )
        self.runner.attach(self.engine.scheduler)
        self.names = 0
        self.aborts = Counter[str]()
        self.told = Counter[type[Event]]()

    def _count(self, event: Event) -> None:
        self.told[type(event)] += 1

    def _check_owners(self, step: Step) -> None:
        """What was staged goes to the request that asked for it, and to nobody who has its row by now."""
        requests = self.engine.scheduler.rows.requests
        assert [self.tier.loads[number].request for number, _ in step.loads] == [
            requests[row].name if row in requests else "nobody" for _, row in step.loads
        ]

    def submit(self) -> None:
        """A prompt of one of many talks, as far as it goes, with an end of its own; the tier knows all of the talk."""
        talk = self.random.randrange(12)
        shared, own = self.random.randint(0, 100), self.random.randint(1, 20)
        prompt = np.concatenate([1000 * talk + np.arange(shared), 50_000 + self.names + np.arange(own)])
        request = Request(f"r{self.names}", prompt.astype(np.int32), self.random.randint(1, 25))
        self.names += 1
        self.runner.scripts[request.name] = script = script_for(request)
        self.engine.submit(request)
        waiting = self.engine.scheduler.queue.find(request.name)
        assert waiting is not None
        unit = self.engine.scheduler.reuse.index.unit
        for place, key in enumerate(waiting.keys[: shared // unit]):
            self.tier.known[key] = script.digests[place * unit : (place + 1) * unit]

    def abort(self) -> None:
        """Of those that a load is under way for, if there are any, every second time."""
        rows = self.engine.scheduler.rows
        loading = [one.name for row, one in rows.requests.items() if rows.is_loading[row]]
        name = self.random.choice(loading if loading and self.random.random() < 0.5 else list(self.engine.streams))
        row = rows.row_of.get(name)
        if row is None:
            self.aborts["waiting"] += 1
        else:
            self.aborts["loading" if rows.is_loading[row] else "running"] += 1
        self.engine.cancel(name)

    def step(self) -> None:
        self.now += 1.0
        self.engine.step()
        check_books(self.engine.scheduler)
        self.tier.check_deadlines()


@pytest.mark.parametrize("names", MIXES, ids=" ".join)
def test_after_a_thousand_random_aborts_nothing_is_held_and_nobody_read_foreign_bytes(names: list[str]) -> None:
    """Requests are aborted while they wait, load and run. Loads finish, fail, come late or never; what they bring goes
    into pages of the request that asked for it or nowhere. Every read is checked, the books are counted at every step,
    and after the last request nothing is held."""
    world = Disturbed(names, seed=len(names))
    while world.aborts.total() < ABORTS:
        while len(world.engine.streams) < 8:
            world.submit()
        world.step()
        if world.random.random() < 0.8:
            world.abort()
    survivors = list(world.engine.streams.values())
    while world.engine.scheduler.flying or world.engine.streams:
        world.step()
    assert all(one.ending is Ending.LENGTH for one in survivors)
    assert min(world.aborts[where] for where in ("waiting", "loading", "running")) > 50, world.aborts
    assert min(world.told[what] for what in (LoadStarted, LoadFinished, LoadFailed)) > 20, world.told
    check_nothing_left(world.engine.scheduler)


class Crowded(World):
    """X loads 64 of its tokens; E and Y, who is preferred, have all the rest of the pool, and nobody can compute."""

    def __init__(self) -> None:
        self.noted = LoadsNoted()
        super().__init__(paged_plan(11, rows=4), self.noted, KeyedTier(seconds=None))
        self.engine.scheduler.typical_output = 1.0
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


def test_what_came_for_a_request_that_is_gone_goes_to_nobody() -> None:
    """The load is done, and X is aborted before anyone asked how it went."""
    world = Crowded()
    world.tier.seconds = 0.0
    world.give_the_row_to_another()
    assert world.told(LoadFinished) == world.noted.loads == []


def test_what_came_goes_to_its_pages_though_nobody_can_compute_and_never_again() -> None:
    """X has its pages: a step of nothing else takes the load along. Z, who gets the row, finds nothing of it."""
    world = Crowded()
    world.tier.seconds = 0.0
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
