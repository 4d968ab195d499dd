"""Requests one after another or together, on an engine that computes nothing: who found what, and what was missed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from quire.check.promises import check_books
from quire.core.events import Event, RequestAdmitted
from quire.core.request import Request, Tokens
from quire.core.rules import Rules
from quire.core.tier import RecordStore, Tier
from quire.engine.engine import Engine, Stream
from quire.models.shape import ModelShape
from quire.plan import bound
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings
from quire.prefix.index import PrefixIndex
from quire.scheduler.queue import Ticket
from quire.scheduler.scheduler import Scheduler
from scenes_of_tiers import Idle
from small_kinds import KINDS

UNIT = 8


def plan_of(
    *names: str, sheets: int = 400, rows: int = 4, batch_tokens: int = 48, max_length: int = 400, unit: int = UNIT
) -> Plan:
    """One layer of each kind, pages and units of 8 tokens unless another unit is asked for."""
    layers = tuple(KINDS[name] for name in names)
    shape = ModelShape("small", "test", layers, max_length=max_length, weights_known=False)
    settings = Settings(
        batch_tokens=batch_tokens, max_requests=rows, page_tokens={"": unit}, match_unit_tokens=unit,
        max_length=max_length,
    )  # fmt: skip
    return make_plan(shape, settings, Budget(sheets=(sheets,)))


def with_leases(*names: str, lease_sheets: int | None = None, **more: int) -> Plan:
    """A pool of three longest requests, of which one is for leases unless another number is given."""
    plan = plan_of(*names, **{"max_length": 200, **more})
    (stage,) = plan.stages
    needed = bound.minimum(stage.kinds, plan.max_length, 0)
    leased = needed if lease_sheets is None else lease_sheets
    return replace(plan, stages=(replace(stage, sheets=3 * needed, lease_sheets=leased),))


def words(name: str, count: int) -> Tokens:
    """Tokens of a name's own, none of which anything else begins with; more of them begin like fewer."""
    return np.random.default_rng(list(name.encode())).integers(1 << 20, 1 << 30, count, dtype=np.int32)


def joined(*parts: Tokens) -> Tokens:
    return np.concatenate(parts)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Traffic:
    """An engine, and what it reported."""

    def __init__(
        self, plan: Plan, *, rules: Rules | None = None, tier: Tier | None = None, keeper: RecordStore | None = None,
        overlap: int = 2,
    ) -> None:  # fmt: skip
        self.events: list[Event] = []
        self.engine = Engine(
            plan, Idle(), rules=rules, tier=tier, keeper=keeper, overlap=overlap, pause=lambda: None,
            listeners=[self.events.append],
        )  # fmt: skip

    @property
    def scheduler(self) -> Scheduler:
        return self.engine.scheduler

    @property
    def index(self) -> PrefixIndex:
        return self.scheduler.reuse.index

    def submit(self, name: str, prompt: Tokens, outputs: int = 1, **more: object) -> Stream:
        return self.engine.submit(Request(name, prompt, outputs, **more))  # type: ignore[arg-type]

    def step(self) -> bool:
        return self.engine.step()

    def finish(self, most_steps: int = 5_000) -> None:
        """Until nothing is left to do; the books balance then."""
        steps = 0
        while self.step():
            steps += 1
            assert steps <= most_steps, "it does not end"
        check_books(self.scheduler)

    def ask(self, name: str, prompt: Tokens, outputs: int = 1, **more: object) -> Mapping[str, int]:
        """Runs one request to its end; what was reported when it was let in."""
        self.submit(name, prompt, outputs, **more)
        self.finish()
        return self.admitted(name)

    def admitted(self, name: str) -> Mapping[str, int]:
        """The numbers of its only admission."""
        (event,) = [event for event in self.events if isinstance(event, RequestAdmitted) and event.request == name]
        return event.numbers

    def missed(self, name: str) -> dict[str, int]:
        """By cause, what was reported of a request as computed before and not found."""
        numbers = self.admitted(name)
        return {key.removeprefix("missed_"): n for key, n in numbers.items() if key.startswith("missed_")}

    def order(self) -> list[str]:
        """In which order requests were let in, again if they were preempted."""
        return [event.request for event in self.events if isinstance(event, RequestAdmitted)]

    def waiting(self, name: str) -> Ticket:
        waiting = self.scheduler.queue.find(name)
        assert waiting is not None
        return waiting

    def evict_all(self) -> int:
        """All that gives way though nothing needs its room; returns how many tokens went at the ends of chains."""
        tokens = 0
        while (evicted := self.index.evict(1e18, must=True, even_awaited=True)).pieces:
            tokens += evicted.tokens
        return tokens


def warm_and_cold_after_an_elder() -> Traffic:
    """A large request that has a cached prefix waits for room, and so does a small one that has none and would fit."""
    traffic = Traffic(plan_of("full", rows=4, sheets=40, max_length=300))
    traffic.ask("before", words("warm", 97))
    traffic.scheduler.admission.typical_output = 1.0
    traffic.submit("elder", words("elder", 150), 30)
    for _ in range(5):
        traffic.step()
    traffic.submit("warm", joined(words("warm", 97), words("more", 120)))
    traffic.submit("cold", words("cold", 20))
    return traffic
