"""An engine on random weights, built in the same steps as one on a checkpoint (`quire.build`), without text.

shape of the catalogue ──▶ plan ──▶ random weights ──▶ placed model ──▶ runner ──▶ engine ──▶ recorded steps
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from quire.bench.random_models import WeightBytes, model_of, shape_of, weight_bytes
from quire.build.engine import make_engine
from quire.build.machine import machine_of
from quire.build.model import meter_of, place_model
from quire.build.plan import plan_shape, run_settings, whole_machine
from quire.build.runner import StartReport, make_runner, record_steps, tables_of
from quire.core.step import Runner
from quire.engine.engine import Engine
from quire.models.shape import ModelShape
from quire.models.weight_layout import WeightFormat
from quire.options.run import RunOptions
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings
from quire.planner.reverse import reverse
from quire.worker.pages.arena import DTYPES, Arena
from quire.worker.pages.staging import Staging
from quire.worker.steps.place import Weights
from quire.worker.steps.runner import TorchRunner

SPARE_ROOM = 1.25
"""On a CPU the pool is this many times what all requests hold at their end: prompts need some for themselves."""


@dataclass(frozen=True, slots=True, eq=False)
class RandomEngine:
    """An engine on random weights, and what it was made of."""

    shape: ModelShape
    plan: Plan
    model: Any
    weights: WeightBytes
    runner: TorchRunner
    engine: Engine
    report: StartReport

    @property
    def steps(self) -> str:
        """How decode steps run."""
        return self.report.steps or "steps are not recorded"


def build_random(
    config: Any,
    settings: Settings,
    options: RunOptions,
    *,
    pool_bytes: int | None = None,
    counts: Sequence[int] | None = None,
    wrap: Callable[[TorchRunner], Runner] = lambda runner: runner,
    staging: Callable[[Plan, Arena], Staging] | None = None,
) -> RandomEngine:
    """`pool_bytes` None: most of a GPU; on a CPU, as much as `settings` can use. `counts`: rows of recorded steps.
    `wrap`: puts something between the engine and its runner. `staging`: makes the runner's."""
    dtype, settings = DTYPES[options.weights_dtype.value], run_settings(settings, options)
    held = WeightFormat(options.weights_dtype, options.device == "cpu", options.weights)
    shape = shape_of(config, dtype, held)
    plan = plan_shape(shape, settings, _budget(shape, settings, options, pool_bytes), options)
    model = model_of(config, torch.device(options.device), dtype, options.weights)
    weights = weight_bytes(model)
    placed = place_model(plan, Weights(model), options, meter_of(options))
    runner = make_runner(plan, placed, staging=None if staging is None else staging(plan, placed.arena))
    engine = make_engine(plan, wrap(runner), options)
    report = record_steps(runner, placed, tables_of(engine), counts)
    return RandomEngine(shape, plan, model, weights, runner, engine, report)


def _budget(shape: ModelShape, settings: Settings, options: RunOptions, pool_bytes: int | None) -> Budget:
    if pool_bytes is None and options.device == "cuda":
        return whole_machine(machine_of(options.device))
    if pool_bytes is None:
        assert settings.max_length is not None
        any_pool = Budget(pool_bytes=1 << 30)
        plan = make_plan(shape, settings, any_pool)
        target = reverse(shape, settings, any_pool, plan, settings.max_length, settings.max_requests)
        pool_bytes = int(SPARE_ROOM * target.pool_bytes)
    return Budget(pool_bytes=pool_bytes, is_accelerator=options.device == "cuda")
