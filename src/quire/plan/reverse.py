"""The reverse question: how large a pool, and how many devices, for so many requests of such a length?"""

from __future__ import annotations

from dataclasses import dataclass, replace

from quire.core.errors import InputError
from quire.kinds import counts
from quire.models.shape import ModelShape
from quire.plan import bound
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings

MOST_DEVICES = 256


@dataclass(frozen=True, slots=True)
class Target:
    length: int
    requests: int
    pool_bytes: int
    """Per rank, on the stage that needs most."""
    sheets: tuple[int, ...]
    """Per stage."""
    devices: int | None
    """Tensor-parallel ranks × stages that hold it; None: not even the most we try, or no memory was given."""
    tensor_parallel: int | None


def reverse(model: ModelShape, settings: Settings, budget: Budget, plan: Plan, length: int, requests: int) -> Target:
    sheets = tuple(
        max(
            bound.minimum(stage.kinds, length, plan.lookahead, plan.reserved_pages),
            int(
                bound.sheets_needed(
                    stage.kinds,
                    [counts(requests * pages) for pages in bound.resident(stage.kinds, length)],
                    plan.reserved_pages,
                )
            ),
        )
        for stage in plan.stages
    )
    pool = max(count * stage.sheet_bytes for count, stage in zip(sheets, plan.stages, strict=True))
    ranks = _ranks_needed(model, settings, budget, length, requests)
    devices = ranks * settings.pipeline_parallel if ranks else None
    return Target(length, requests, pool, sheets, devices, ranks)


def _ranks_needed(model: ModelShape, settings: Settings, budget: Budget, length: int, requests: int) -> int | None:
    """The smallest power of two (times the ranks asked for) whose plan holds the target."""
    if budget.memory_bytes is None:
        return None
    memory_only = replace(budget, pool_bytes=None, sheets=None)
    ranks = settings.tensor_parallel
    while ranks * settings.pipeline_parallel <= MOST_DEVICES:
        try:
            plan = make_plan(model, replace(settings, tensor_parallel=ranks, max_length=length), memory_only)
        except InputError:
            return None
        if plan.fits and bound.concurrency(plan, length) >= requests:
            return ranks
        ranks *= 2
    return None
