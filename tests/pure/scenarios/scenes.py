"""What the scenarios share: small plans, an engine with a clock of its own, and a tier that answers when told to."""

from __future__ import annotations

import numpy as np

from quire.cache.audit import audit
from quire.core.events import Event
from quire.core.request import Request, Tokens
from quire.core.rules import Rules
from quire.core.step import Runner, Step, StepResult
from quire.engine.engine import Engine, Stream
from quire.models.shape import ModelShape
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings
from quire.tiers.in_memory import InMemoryTier
from small_kinds import KINDS

PAGE = 16


def paged_plan(pages: int, *, lookahead: int = 0, rows: int = 6, batch_tokens: int = 2048) -> Plan:
    """One full kind in pages of 16 tokens, each a sheet of its own; prefixes match page by page."""
    shape = ModelShape("paged", "test", (KINDS["full"],), max_length=1 << 20, weights_known=False)
    settings = Settings(
        max_requests=rows,
        batch_tokens=batch_tokens,
        page_tokens={"": PAGE},
        match_unit_tokens=PAGE,
        speculative_tokens=lookahead,
    )
    plan = make_plan(shape, settings, Budget(sheets=(pages,)))
    assert [kind.pages_per_sheet for kind in plan.stages[0].kinds] == [1]
    return plan


def ask(name: str, prompt: int, outputs: int, priority: int = 0) -> Request:
    """A request whose tokens are its own from the first one on."""
    return Request(name, own_tokens(name, prompt), outputs, priority)


def own_tokens(name: str, count: int) -> Tokens:
    return np.random.default_rng(list(name.encode())).integers(10, 1 << 17, count, dtype=np.int32)


class FreeRunner:
    """Yields a token at no cost: its position. Notes how many tokens each step had."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self._flying: list[StepResult] = []

    def launch(self, step: Step) -> None:
        self.sizes.append(step.tokens)
        self._flying.append(StepResult(step.number, (step.starts + step.counts)[step.samples]))

    def collect(self) -> StepResult:
        return self._flying.pop(0)


class World:
    """An engine, its tier and its clock, which moves on by a tenth of a second with every turn of the loop."""

    def __init__(
        self, plan: Plan, runner: Runner | None = None, load_seconds: float = 1.0, rules: Rules | None = None
    ) -> None:
        """`load_seconds`: what a load takes."""
        self.now = 0.0
        self.tier = InMemoryTier(lambda: self.now, seconds=load_seconds)
        self.events: list[Event] = []
        self.engine = Engine(
            plan,
            runner or FreeRunner(),
            rules=rules,
            tier=self.tier,
            clock=lambda: self.now,
            pause=lambda: None,
            listeners=[self.events.append],
        )

    def submit(self, request: Request, on_tier_tokens: int = 0) -> Stream:
        """`on_tier_tokens`: so much of its prompt lies on the tier."""
        stream = self.engine.submit(request)
        waiting = self.engine.scheduler.queue.find(request.name)
        assert waiting is not None
        self.tier.known.update(waiting.keys[: on_tier_tokens // self.engine.scheduler.reuse.index.unit])
        return stream

    def step(self) -> bool:
        self.now += 0.1
        is_busy = self.engine.step()
        for memory in self.engine.scheduler.memories:
            audit(memory, {row: one.name for row, one in self.engine.scheduler.rows.requests.items()})
        return is_busy

    def run(self, most_steps: int) -> None:
        steps = 0
        while self.step():
            steps += 1
            assert steps <= most_steps, "it does not end"

    def place_of(self, what: type[Event], name: str) -> int:
        """Where in the stream of events something first happened to a request."""
        return next(
            place
            for place, event in enumerate(self.events)
            if (type(event), getattr(event, "request", "")) == (what, name)
        )

    def told(self, what: type[Event]) -> list[str]:
        return [event.request for event in self.events if isinstance(event, what)]

    def loading(self) -> list[str]:
        """Who holds pages for a load that is under way."""
        rows = self.engine.scheduler.rows
        return [rows.requests[row].name for row in np.flatnonzero(rows.is_loading).tolist() if row in rows.requests]
