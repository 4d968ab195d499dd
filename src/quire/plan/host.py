"""How much a budget of host memory holds: from the plan's real tensors, each byte once for all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from quire.core.units import ceil_div
from quire.kinds import Kind
from quire.plan.plan import HostPlan, StagePlan

SESSION_TOKENS = 8192


def plan_host(stages: Sequence[StagePlan], budget_bytes: int) -> HostPlan:
    """Divides the budget so that idle sessions of 8k tokens find each kind's share of what a later hit needs."""
    kinds: dict[Kind, int] = {}
    page_bytes: dict[Kind, int] = {}
    for stage in stages:
        for plan in stage.kinds:
            kinds[plan.kind] = plan.page_tokens
            unique = plan.unique_unit_bytes * plan.kind.units_per_page(plan.page_tokens)
            page_bytes[plan.kind] = page_bytes.get(plan.kind, 0) + unique
    session = {kind: _session_pages(kind, tokens) * page_bytes[kind] for kind, tokens in kinds.items()}
    total = sum(session.values())
    return HostPlan(
        budget_bytes=budget_bytes,
        pages=MappingProxyType({k.name: budget_bytes * session[k] // (total * page_bytes[k]) for k in kinds}),
        page_bytes=MappingProxyType({kind.name: page_bytes[kind] for kind in kinds}),
        warm_sessions=budget_bytes // total,
        session_tokens=SESSION_TOKENS,
    )


def _session_pages(kind: Kind, page_tokens: int) -> int:
    """Pages that hold what `kind` needs to go on after a session of 8k tokens."""
    if kind.kind == "state":
        return 1
    return sum(
        ceil_div(end, page_tokens) - begin // page_tokens
        for begin, end in kind.hit_needs(SESSION_TOKENS)
        if end > begin
    )
