"""An engine on random weights, started as `quire.build.assemble` starts one on a checkpoint's, without text.

shape of the catalogue ──▶ plan ──▶ random weights ──▶ runner ──▶ engine
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from quire.bench.random_models import model_of, shape_of
from quire.build.assemble import following, memory_of, require_gpu, require_memory
from quire.build.machine import available_bytes, machine_of
from quire.core.dtypes import DType
from quire.core.step import TableView
from quire.engine.engine import Engine
from quire.models.shape import ModelShape
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings
from quire.planner.reverse import reverse
from quire.worker.arena import Arena
from quire.worker.meter import Measured, Meter
from quire.worker.model import TorchModel
from quire.worker.positions import fix_positions
from quire.worker.runner import TorchRunner

Tables = tuple[tuple[TableView, ...], ...]
Finish = Callable[[Tables, Sequence[int] | None], tuple[str, tuple[Measured, ...]]]
"""What is left to do when the engine's tables are there, for steps of so many rows."""
DTYPES = {"cpu": (DType.FP32, torch.float32), "cuda": (DType.BF16, torch.bfloat16)}
"""Of weights, by device."""
SPARE_ROOM = 1.25
"""On a CPU the pool is so much more than what all requests hold at their end: prompts need some for themselves."""


@dataclass(frozen=True, slots=True, eq=False)
class Started:
    shape: ModelShape
    plan: Plan
    model: Any
    runner: TorchRunner
    engine: Engine
    steps: str
    """How decode steps run."""
    measured: tuple[Measured, ...]
    """On a GPU: the ledger."""


def start(
    config: Any,
    settings: Settings,
    device: str,
    *,
    pool_bytes: int | None = None,
    is_compiled: bool = False,
    is_deterministic: bool = False,
    counts: Sequence[int] | None = None,
) -> Started:
    """`pool_bytes` none: most of a GPU; on a CPU, as much as `settings` can use. `counts`: rows of recorded steps."""
    require_gpu(is_deterministic, device)
    kept, dtype = DTYPES[device]
    settings, shape = following(settings, kept), shape_of(config, dtype)
    plan = make_plan(shape, settings, _budget(shape, settings, device, pool_bytes)).require_fit()
    if device == "cpu":  # a GPU's memory is the budget
        require_memory(plan, plan, available_bytes())
    model = model_of(config, torch.device(device), dtype)
    runner, finish = (_on_gpu if device == "cuda" else _on_cpu)(plan, model, is_compiled, is_deterministic)
    engine = Engine(plan, runner)
    tables = tuple(tuple(table.view for table in memory.tables) for memory in engine.scheduler.memories)
    return Started(shape, plan, model, runner, engine, *finish(tables, counts))


def _budget(shape: ModelShape, settings: Settings, device: str, pool_bytes: int | None) -> Budget:
    if pool_bytes is None and device == "cuda":
        return memory_of(machine_of(device))
    if pool_bytes is None:
        assert settings.max_length is not None
        any_pool = Budget(pool_bytes=1 << 30)
        plan = make_plan(shape, settings, any_pool)
        target = reverse(shape, settings, any_pool, plan, settings.max_length, settings.max_requests)
        pool_bytes = int(SPARE_ROOM * target.pool_bytes)
    return Budget(pool_bytes=pool_bytes, is_accelerator=device == "cuda")


def _on_gpu(plan: Plan, model: Any, is_compiled: bool, is_deterministic: bool) -> tuple[TorchRunner, Finish]:
    from quire.worker.boot import boot, record  # needs Triton, which a CPU does without

    meter = Meter(torch.device("cuda"))
    runner = boot(plan, model, meter, is_compiled=is_compiled, is_deterministic=is_deterministic)

    def finish(tables: Tables, counts: Sequence[int] | None) -> tuple[str, tuple[Measured, ...]]:
        record(runner, meter, tables, counts)
        return runner.describe(), meter.lines(plan)

    return runner, finish


def _on_cpu(plan: Plan, model: Any, *_for_gpus: bool) -> tuple[TorchRunner, Finish]:
    arena = Arena(plan.stages[0], torch.device("cpu"))
    fix_positions(model, plan.max_length)
    return TorchRunner(plan, TorchModel(model, arena), arena), lambda _tables, _counts: ("steps are not recorded", ())
