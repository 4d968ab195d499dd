"""The fourth step: the runner of a placed model; and the last one: its recorded decode steps.

PlacedModel + Staging ──▶ runner ──▶ (engine) ──▶ recordings, which need tables ──▶ StartReport
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire.core.units import format_bytes
from quire.engine.engine import Engine
from quire.plan.plan import Plan
from quire.ranks.tables import Tables

if TYPE_CHECKING:
    from quire.worker.pages.staging import Staging
    from quire.worker.steps.meter import Measured
    from quire.worker.steps.place import PlacedModel
    from quire.worker.steps.runner import GrammarMasks, TorchRunner


@dataclass(frozen=True, slots=True)
class StartReport:
    """Results of the start on a GPU; on a CPU only what multiplies packed weights, and the scales."""

    measured: tuple[Measured, ...] = ()
    """The ledger as it was measured, next to the plan's."""
    steps: str = ""
    """Whether decode steps are recorded, for how many rows, or why not."""
    has_recordings: bool = True
    scales: str = ""
    """Where the scales of a KV cache in 8 bits come from."""
    kernels: tuple[str, ...] = ()
    """Which backend runs each kind, and why no faster one does; on a CPU the same of packed weights."""

    ranks: tuple[str, ...] = ()
    """What the other ranks have measured."""

    def lines(self) -> tuple[str, ...]:
        steps = *filter(None, (self.steps, self.scales)), *(f"kernels: {one}" for one in self.kernels)
        sizes = ((line.name, format_bytes(line.measured_bytes), line.planned_bytes) for line in self.measured)
        return (
            *steps,
            *(f"memory: {name} {size}, planned {format_bytes(planned)}" for name, size, planned in sizes),
            *self.ranks,
        )


def make_runner(
    plan: Plan, placed: PlacedModel, grammars: GrammarMasks | None = None, staging: Staging | None = None
) -> TorchRunner:
    from quire.worker.steps.runner import TorchRunner

    kind = TorchRunner if placed.meter is None else _device_runner()
    parts = (plan, placed.model, placed.arena, grammars, placed.draft)
    return kind(*parts, staging=staging, options=placed.options, member=placed.member)


def _device_runner() -> type[TorchRunner]:
    """Needs Triton, which a CPU does without."""
    from quire.worker.steps.device_runner import DeviceRunner

    return DeviceRunner


def tables_of(engine: Engine) -> Tables:
    return tuple(tuple(table.view for table in memory.tables) for memory in engine.scheduler.memories)


def record_steps(
    runner: TorchRunner, placed: PlacedModel, tables: Tables, counts: Sequence[int] | None = None
) -> StartReport:
    """Records decode steps on a GPU, the last thing that takes its memory; ranks record together. `tables`: as steps
    will have them. `counts`: of rows; by default up to as many as the plan has requests."""
    if placed.meter is None:
        return StartReport(scales=runner.model.origin_of_scales, kernels=runner.model.describe_products())
    from quire.worker.steps.boot import record
    from quire.worker.steps.device_runner import DeviceRunner

    assert isinstance(runner, DeviceRunner)
    record(runner, placed.meter, tables, counts)
    measured = placed.meter.lines(runner.plan)
    is_recorded, scales = runner.graphs is not None, runner.model.origin_of_scales
    return StartReport(measured, runner.describe(), is_recorded, scales, runner.kernels())
