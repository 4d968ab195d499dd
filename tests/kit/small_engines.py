"""Engines of a few layers of any kinds on a runner that checks every read, and requests for them."""

from __future__ import annotations

from zlib import crc32

import numpy as np

from quire.cache.audit import audit
from quire.core.request import Request
from quire.engine.engine import Engine
from quire.models.shape import ModelShape
from quire.plan import bound
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings
from shadow import ShadowRunner
from small_kinds import KINDS

LENGTH = 220


def small_plan(
    names: list[str], sheets: int | None, *, lookahead: int = 0, budget: int = 64, rows: int = 6, stages: int = 1
) -> Plan:
    """`sheets` None: just what a lone request of LENGTH needs."""
    layers = [KINDS[name] for _ in range(2) for name in names]
    shape = ModelShape("small", "test", tuple(layers), max_length=LENGTH, weights_known=False)
    chosen = Settings(
        batch_tokens=budget,
        max_requests=rows,
        speculative_tokens=lookahead,
        max_length=LENGTH,
        pipeline_parallel=stages,
    )
    if sheets is None:
        roomy = make_plan(shape, chosen, Budget(pool_bytes=1 << 30))
        return make_plan(
            shape,
            chosen,
            Budget(sheets=tuple(bound.minimum(stage.kinds, LENGTH, lookahead) for stage in roomy.stages)),
        )
    return make_plan(shape, chosen, Budget(sheets=(sheets,)))


def engine_for(plan: Plan, overlap: int = 2, **options: object) -> tuple[Engine, ShadowRunner]:
    runner = ShadowRunner()
    engine = Engine(plan, runner, overlap=overlap, **options)  # type: ignore[arg-type]
    runner.attach(engine.scheduler)
    return engine, runner


def request(name: str, prompt: int, outputs: int, shared: int = 0, **more: object) -> Request:
    """The first `shared` tokens are everyone's, the rest its own."""
    tokens = np.arange(prompt, dtype=np.int32)
    tokens[shared:] += crc32(name.encode()) % 10_000 + 1
    return Request(name, tokens, outputs, **more)  # type: ignore[arg-type]


def check(engine: Engine) -> None:
    for memory in engine.scheduler.memories:
        audit(memory, {row: r.name for row, r in engine.scheduler.rows.requests.items()})


def run(engine: Engine, most_steps: int) -> int:
    steps = 0
    while engine.step():
        check(engine)
        steps += 1
        assert steps <= most_steps, "it does not end"
    check(engine)
    return steps


def is_empty(engine: Engine) -> bool:
    """After the last request only the cache holds pages; after dropping the cache, nothing does."""
    engine.scheduler.reuse.index.drop()
    check(engine)
    return all(memory.pool.free_sheets == memory.stage.sheets for memory in engine.scheduler.memories)
