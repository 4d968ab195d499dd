"""An engine that is never left alone: a tier that fails and is late, requests that come and are aborted at random."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np

from quire.check.faulty import FaultyTier
from quire.check.promises import check_books
from quire.check.scripts import script_for
from quire.check.shadow import ShadowRunner
from quire.core.events import Event
from quire.core.request import Request
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

LENGTH, LOAD_SECONDS, ROWS = 150, 5.0, 4
SPARE_SHEETS = 4
"""Beyond what a lone request of the longest length needs: little, so that rows are short of pages all the time."""
MIXES = [["full", "window"], ["state", "full", "chunked"]]


def plan_of(names: list[str]) -> Plan:
    layers = tuple(KINDS[name] for name in names)
    shape = ModelShape("small", "test", layers, max_length=LENGTH, weights_known=False)
    settings = Settings(batch_tokens=48, max_requests=ROWS, page_tokens={"": 8}, match_unit_tokens=8, lease_bytes=0)
    roomy = make_plan(shape, settings, Budget(sheets=(1000,)))
    return make_plan(shape, settings, Budget(sheets=(SPARE_SHEETS + bound.minimum(roomy.stages[0].kinds, LENGTH, 0),)))


class NotedTier(FaultyTier):
    """Remembers whose each load was."""

    loads: dict[int, Load]

    def begin(self, load: Load) -> None:
        self.loads[load.number] = load
        super().begin(load)

    def check_deadlines(self) -> None:
        late = [one for one in self.transfers.values() if self.clock() > one.begun + LOAD_SECONDS + 1]
        assert not [one.load.request for one in late if one.is_awaited]


class Disturbed:
    """An engine whose tier brings prefixes, fails, answers late or never; requests come and are aborted at random."""

    def __init__(self, names: list[str], seed: int) -> None:
        self.random, self.now = Random(seed), 0.0
        self.runner = ShadowRunner()
        self.runner.before_launch = self._check_owners
        plan = plan_of(names)
        self.tier = NotedTier(self.random, lambda: self.now, LOAD_SECONDS, plan, learns=True)
        self.tier.loads, self.runner.keeping = {}, self.tier
        self.engine = Engine(
            plan,
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
        self.tier.learn(waiting.keys[: shared // unit], script.digests)

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
