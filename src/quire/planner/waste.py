"""How many bytes are taken for each byte that is needed."""

from __future__ import annotations

import math

import numpy as np

from quire.kinds import counts
from quire.plan.geometry import smoothed
from quire.plan.plan import Plan, StagePlan


def waste(plan: Plan, length: int) -> float:
    """Bytes taken (pages held × sheet bytes ÷ pages per sheet) ÷ exact bytes of what is live in steady decode,
    averaged over the 64 lengths from `length` on; NaN if nothing is live (before the first fold)."""
    lengths = smoothed([length])[0]
    taken = np.zeros(len(lengths))
    exact = np.zeros(len(lengths))
    for stage in plan.stages:
        for kind in stage.kinds:
            pages = kind.groups * kind.kind.resident(lengths, kind.page_tokens)
            taken += pages * (stage.sheet_bytes / kind.pages_per_sheet)
            exact += counts(kind.kind.units(lengths)) * kind.unit_bytes
    live = exact > 0
    return float((taken[live] / exact[live]).mean()) if live.any() else math.nan


def tail_ratio(stage: StagePlan) -> float:
    """The largest part of a sheet that no page of some kind covers."""
    tails = [stage.sheet_bytes - kind.pages_per_sheet * kind.page_bytes for kind in stage.kinds]
    return max(tails, default=0) / stage.sheet_bytes if stage.sheet_bytes else 0.0
