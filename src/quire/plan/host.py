"""How much a budget of host memory holds: from the plan's real tensors, each byte once for all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from quire.kinds import counts
from quire.plan.plan import HostPlan, StagePlan

SESSION_TOKENS = 8192


def plan_host(stages: Sequence[StagePlan], budget_bytes: int, max_length: int) -> HostPlan:
    """Divides the budget as idle sessions of 8k tokens do: by what each kind holds of one in steady decode."""
    tokens = max(1, min(SESSION_TOKENS, max_length))
    page_bytes: dict[str, int] = {}
    pages: dict[str, int] = {}
    for plan in (kind for stage in stages for kind in stage.kinds):
        unique = plan.unique_unit_bytes * plan.kind.units_per_page(plan.page_tokens)
        page_bytes[plan.name] = page_bytes.get(plan.name, 0) + unique
        pages[plan.name] = int(plan.kind.resident(counts(tokens), plan.page_tokens))
    total = sum(pages[name] * page_bytes[name] for name in pages)
    return HostPlan(
        budget_bytes=budget_bytes,
        pages=MappingProxyType({name: budget_bytes * count // total for name, count in pages.items()}),
        page_bytes=MappingProxyType(page_bytes),
        warm_sessions=budget_bytes // total,
        session_tokens=tokens,
    )
