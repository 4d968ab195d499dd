"""The reverse question: how large a pool, and how many devices, for N requests of a given length?"""

from __future__ import annotations

from dataclasses import dataclass, replace

from quire.core.errors import InputError
from quire.core.units import ceil_div
from quire.kinds import counts
from quire.models.shape import ModelShape
from quire.plan import bound
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings

TENSOR_RANKS, STAGES = (1, 2, 4, 8, 16), (1, 2, 3, 4, 6, 8)
MOST_ROWS = 1024
"""The most requests that one replica runs at once, whatever its pool would hold."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """Devices that hold the target: replicas of an engine with given numbers of ranks and stages."""

    devices: int
    replicas: int
    tensor_parallel: int
    pipeline_parallel: int
    requests_each: int
    """Requests of the length that one replica holds."""

    @property
    def engine_devices(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel


@dataclass(frozen=True, slots=True)
class Target:
    length: int
    requests: int
    pool_bytes: int
    """Per rank, with the requested ranks and stages, on the stage that needs most."""
    sheets: tuple[int, ...]
    """Per stage."""
    fleet: Fleet | None
    """The fewest devices; None: no memory was given, or no combination that is tried holds even one request."""
    servers: Fleet | None = None
    """The same with engines of one device each, which Quire runs today; None: one device holds not even one request."""


def reverse(model: ModelShape, settings: Settings, budget: Budget, plan: Plan, length: int, requests: int) -> Target:
    if model.max_length is not None and length > model.max_length:
        raise InputError(f"--target-length {length:,} is beyond the {model.max_length:,} that {model.name} supports")
    sheets = []
    for stage in plan.stages:
        pages = [counts(requests * one) for one in bound.resident(stage.kinds, length, plan.lookahead)]
        together = int(bound.sheets_needed(stage.kinds, pages, plan.reserved_pages))
        sheets.append(max(together, bound.minimum(stage.kinds, length, plan.lookahead, plan.reserved_pages)))
    pool = max(count * stage.sheet_bytes for count, stage in zip(sheets, plan.stages, strict=True))
    fleets = _fleets(model, settings, budget, length, requests)
    fewest = min(fleets, key=lambda f: (f.devices, f.engine_devices, f.pipeline_parallel), default=None)
    servers = next((fleet for fleet in fleets if fleet.engine_devices == 1), None)
    return Target(length, requests, pool, tuple(sheets), fewest, servers)


def _fleets(model: ModelShape, settings: Settings, budget: Budget, length: int, requests: int) -> list[Fleet]:
    """One for every combination of ranks and stages that holds at least one request."""
    if budget.memory_bytes is None:
        return []
    memory_only = replace(budget, pool_bytes=None, sheets=None)
    settings = replace(settings, max_length=length, max_requests=max(settings.max_requests, min(requests, MOST_ROWS)))
    fleets = []
    for ranks in TENSOR_RANKS:
        for stages in STAGES:
            changed = replace(settings, tensor_parallel=ranks, pipeline_parallel=stages, stage_layers=None)
            held = _held(model, changed, memory_only, length)
            if held:
                replicas = ceil_div(requests, held)
                fleets.append(Fleet(ranks * stages * replicas, replicas, ranks, stages, held))
    return fleets


def _held(model: ModelShape, settings: Settings, budget: Budget, length: int) -> int:
    try:
        plan = make_plan(model, settings, budget)
    except InputError:
        return 0
    return min(bound.concurrency(plan, length), settings.max_requests) if plan.fits else 0
