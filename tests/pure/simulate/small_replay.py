"""A small model on a small device, for tests that play traces to it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from quire.core.rules import Rules
from quire.models.read import read_model
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings
from quire.simulate.cost import CostModel, cost_model
from quire.simulate.devices import Speed
from quire.simulate.replay import Played, Replay
from quire.simulate.tokens import Recipe
from quire.simulate.traces import Asked, Trace

MODEL = read_model("llama-3.2-1b")
SPEED = Speed(1e12, 1e14)


def plan_of(pool_bytes: int = 1 << 30, settings: Settings | None = None) -> Plan:
    return make_plan(MODEL, settings or Settings(), Budget(memory_bytes=1 << 36, pool_bytes=pool_bytes))


def cost_of(plan: Plan, speed: Speed = SPEED, overhead: float = 1e-3, active: float = 1.0) -> CostModel:
    return cost_model(plan, MODEL, speed, overhead, active)


def asked(name: str, seconds: float, *pieces: tuple[int, int, int], output: int = 8, after: int | None = None) -> Asked:
    return Asked(name, Recipe.of(pieces), output, seconds, after)


def play(
    *requests: Asked, plan: Plan | None = None, cost: CostModel | None = None, rules: Rules | None = None
) -> Played:
    plan = plan or plan_of()
    return Replay(plan, cost or cost_of(plan), Trace("test", requests), rules or Rules()).play()


def seconds_of(cost: CostModel, *rows: tuple[int, int]) -> float:
    """Of a step with rows (tokens settled, tokens computed), each of which yields a token."""
    starts, counts = np.array(rows, dtype=np.int64).T
    return cost.seconds(starts, counts, len(rows))


def at_speed(cost: CostModel, speed: Speed) -> CostModel:
    return replace(cost, speed=speed)
