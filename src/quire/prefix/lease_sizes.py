"""How many pages a lease of a given length takes, before it exists: room for requests, plans and answers count by it.

kinds that grow    every page up to the length
kinds with a tail  whole units: a run that touches one more than it fills, and sinks
states             one checkpoint
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.units import ceil_div
from quire.kinds import Keeps, counts
from quire.plan import bound
from quire.plan.plan import KindPlan, Plan, StagePlan

Pages = list[list[int]]
"""By stage, by kind: a number of pages."""


def lease_pages(plan: Plan, length: int) -> Pages:
    """The most pages that a lease takes, wherever up to `length` tokens it ends."""
    return most_pages(plan.stages, plan.reuse_unit_tokens, length)


def most_pages(stages: Sequence[StagePlan], unit: int, length: int) -> Pages:
    """The same for these stages, in units of reuse of `unit` tokens."""
    tailed = [kind for stage in stages for kind in stage.kinds if kind.kind.keeps is Keeps.TAIL]
    tails = min(ceil_div(length, unit), _most_tail_units(tailed, unit))
    return [[kind.groups * _pages(kind, length, tails, unit) for kind in stage.kinds] for stage in stages]


def _pages(kind: KindPlan, length: int, tails: int, unit: int) -> int:
    """Of one group."""
    if kind.kind.keeps is Keeps.STATE:
        return 1
    return ceil_div(length, kind.page_tokens) if kind.kind.grows else tails * (unit // kind.page_tokens)


def _most_tail_units(tailed: list[KindPlan], unit: int) -> int:
    runs = [ceil_div(kind.kind.fixed_units * kind.kind.tokens_per_unit, unit) for kind in tailed]
    sinks = [ceil_div(kind.kind.sink_pages(kind.page_tokens) * kind.page_tokens, unit) for kind in tailed]
    return max(runs, default=0) + 1 + max(sinks, default=0)


def lease_sheets(plan: Plan, length: int, leases: int = 1) -> list[int]:
    """By stage: sheets that so many leases take which share nothing, their pages gathered."""
    return [
        int(bound.sheets_needed(stage.kinds, [counts(leases * count) for count in own]))
        for stage, own in zip(plan.stages, lease_pages(plan, length), strict=True)
    ]
