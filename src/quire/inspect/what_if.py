"""What another pool or another data type of keys and values would change: the planner's own answers, as a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from quire.core.dtypes import DType
from quire.core.errors import QuireError
from quire.core.units import format_bytes
from quire.models.shape import ModelShape
from quire.plan import bound
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget
from quire.planner.again import settings_of, with_pool

Json = dict[str, Any]
MOST_LENGTH, MOST_POOL_BYTES = 1 << 31, 1 << 50
FACTORS = ((0.5, "half the pool"), (2.0, "twice the pool"))


def what_if_document(plan: Plan, length: int, pool_bytes: int | None = None, model: ModelShape | None = None) -> Json:
    """Concurrent requests of `length` tokens and the longest length, as planned and with one change each. `model` None:
    its configuration is not known, so nothing that changes the size of pages is asked."""
    rows: list[tuple[str, Plan | None]] = [("as planned", plan)]
    rows += [(option, with_pool(plan, factor)) for option, factor in _pools(plan, pool_bytes)]
    rows += _dtypes(plan, model)
    return {
        "length": length,
        "pool_bytes": plan.bottleneck.pool_bytes,
        "table": {
            "option": [option for option, _ in rows],
            "requests": [None if one is None else bound.concurrency(one, length) for _, one in rows],
            "max_length": [None if one is None else one.max_length for _, one in rows],
            "pool_bytes": [None if one is None else one.bottleneck.pool_bytes for _, one in rows],
        },
    }


def _pools(plan: Plan, pool_bytes: int | None) -> Iterator[tuple[str, float]]:
    for factor, option in FACTORS:
        yield option, factor
    if pool_bytes is not None:
        yield f"--pool {format_bytes(pool_bytes)}", pool_bytes / plan.bottleneck.pool_bytes


def _dtypes(plan: Plan, model: ModelShape | None) -> Iterator[tuple[str, Plan | None]]:
    """The other width of keys and values, in the same pool. A model whose plan cannot be made again from its
    configuration (as with a draft model's layers) has none."""
    if model is None:
        return
    settings, budget = settings_of(plan), Budget(pool_bytes=plan.bottleneck.pool_bytes)
    settings = replace(
        settings,
        tensor_parallel=plan.tensor_parallel,
        pipeline_parallel=plan.pipeline_parallel,
        page_tokens={},
        max_length=plan.requested_max_length,
    )
    try:
        if [stage.kinds for stage in make_plan(model, settings, budget).stages] != [one.kinds for one in plan.stages]:
            return
    except QuireError:
        return
    other = DType.BF16 if settings.kv_dtype is DType.FP8 else DType.FP8
    try:
        yield f"--kv-dtype {other.value}", make_plan(model, replace(settings, kv_dtype=other), budget)
    except QuireError:
        yield f"--kv-dtype {other.value}", None
