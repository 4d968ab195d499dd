"""A plan as the start of another one: the settings that it was made with, and the same plan with another pool."""

from __future__ import annotations

from dataclasses import replace

from quire.core.dtypes import DType
from quire.kinds import Keeps
from quire.plan import bound
from quire.plan.plan import Plan, StagePlan
from quire.plan.settings import Settings


def settings_of(plan: Plan) -> Settings:
    """The settings of the plan, as far as they shape pages; length and pool depend on the machine."""
    pages = {
        kind.name: kind.page_tokens
        for stage in plan.stages
        for kind in stage.kinds
        if kind.kind.keeps is not Keeps.STATE
    }
    return Settings(
        max_requests=plan.max_requests,
        batch_tokens=plan.batch_tokens,
        kv_dtype=DType(plan.kv_dtype),
        state_dtype=DType(plan.state_dtype) if plan.state_dtype else None,
        page_tokens=pages,
        tensor_parallel=plan.tensor_parallel,
        pipeline_parallel=plan.pipeline_parallel,
        stage_layers=tuple(stage.layers for stage in plan.stages) if plan.pipeline_parallel > 1 else None,
        match_unit_tokens=plan.match_unit_tokens,
        host_block_tokens=plan.host_block_tokens,
        reserved_pages=plan.reserved_pages,
        speculative_tokens=plan.lookahead,
    )


def with_pool(plan: Plan, factor: float) -> Plan:
    """The same pages in a pool of another size, with the longest length that it admits. Its ledger stays as it was."""
    stages = tuple(_with_sheets(plan, stage, int(stage.sheets * factor)) for stage in plan.stages)
    return replace(plan, stages=stages, max_length=min(stage.max_length for stage in stages if stage.kinds))


def _with_sheets(plan: Plan, stage: StagePlan, sheets: int) -> StagePlan:
    if not stage.kinds:
        return stage
    limit = plan.requested_max_length or plan.model_max_length or plan.max_length
    longest = bound.longest(stage.kinds, lambda _length: sheets, plan.lookahead, plan.reserved_pages, limit)
    return replace(stage, sheets=sheets, max_length=longest)
