"""What each rank holds, which stage is the bottleneck, and how much it leaves idle on other stages."""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.units import format_count
from quire.kinds import counts
from quire.plan import bound
from quire.plan.plan import LedgerLine, RankPlan, StagePlan
from quire.plan.settings import Budget, Settings
from quire.plan.shares import KindShare
from quire.plan.stages import CutStage

REFERENCE_LENGTH = 8192
"""The bottleneck and idle bytes are computed at this length, or at the longest if that is shorter."""


def reference_length(max_length: int) -> int:
    return max(1, min(REFERENCE_LENGTH, max_length))


def find_bottleneck(stages: Sequence[StagePlan], ahead: int, reserved: int, max_length: int) -> int:
    """The stage that admits the shortest length; among equals, the one that holds the fewest requests."""

    def tightness(index: int) -> tuple[int, int]:
        stage = stages[index]
        held = bound.stage_concurrency(stage.kinds, stage.sheets, reference_length(max_length), ahead, reserved)
        return (stage.max_length, held)

    return min((index for index, stage in enumerate(stages) if stage.kinds), key=tightness)


def plan_ranks(
    cuts: Sequence[CutStage], stages: Sequence[StagePlan], settings: Settings, budget: Budget, length: int
) -> tuple[RankPlan, ...]:
    idle = _idle_bytes(stages, settings, reference_length(length))
    ranks, ranks_each = [], settings.tensor_parallel
    for index, (cut, stage) in enumerate(zip(cuts, stages, strict=True)):
        pool = LedgerLine("pool", stage.pool_bytes, "chosen", format_count(stage.sheets, "sheet"))
        ledger = _close((*cut.fixed, cut.tables(settings, length), pool), budget)
        for tensor_rank in range(settings.tensor_parallel):
            missing = _unfilled_bytes(cut.share.kinds, stage.pool_bytes - idle[index], tensor_rank, ranks_each)
            ranks.append(
                RankPlan(
                    rank=index * settings.tensor_parallel + tensor_rank,
                    stage=index,
                    tensor_rank=tensor_rank,
                    pool_bytes=stage.pool_bytes,
                    idle_bytes=idle[index] + missing,
                    ledger=ledger,
                )
            )
    return tuple(ranks)


def _idle_bytes(stages: Sequence[StagePlan], settings: Settings, length: int) -> list[int]:
    """Bytes of sheets that stay free on each stage when the plan holds all the requests of `length` that it can."""
    ahead, reserved = settings.speculative_tokens, settings.reserved_pages
    held = [
        bound.stage_concurrency(stage.kinds, stage.sheets, length, ahead, reserved) if stage.kinds else None
        for stage in stages
    ]
    together = min(count for count in held if count is not None)
    idle = []
    for stage, most in zip(stages, held, strict=True):
        if most is None or most == together:
            idle.append(0)
            continue
        pages = [counts(together * one) for one in bound.resident(stage.kinds, length, ahead)]
        used = int(bound.sheets_needed(stage.kinds, pages, reserved))
        idle.append(max(0, stage.sheets - used) * stage.sheet_bytes)
    return idle


def _unfilled_bytes(shares: Sequence[KindShare], busy_bytes: int, tensor_rank: int, ranks: int) -> int:
    """Bytes of page rows that this rank has no heads for, if heads do not divide evenly."""
    unfilled = total = 0
    for share in shares:
        for part in (part for slot in share.slots for part in slot.parts):
            total += part.bytes
            if not part.replicated and part.model_heads > ranks:
                short, longer = divmod(part.model_heads, ranks)
                unfilled += (part.heads - short - (tensor_rank < longer)) * part.row_bytes
    return busy_bytes * unfilled // total if total else 0


def _close(lines: tuple[LedgerLine, ...], budget: Budget) -> tuple[LedgerLine, ...]:
    """Adds the last line, so that the ledger sums to the device's memory: unused bytes are the margin."""
    if budget.memory_bytes is None:
        return lines
    rest = budget.memory_bytes - sum(line.bytes for line in lines)
    if rest < 0:
        return (
            *lines,
            LedgerLine(
                "missing",
                rest,
                "computed",
                f"beyond the device's memory, of which {1 - budget.memory_fraction:.0%} should stay free in addition",
            ),
        )
    asked = f"{1 - budget.memory_fraction:.0%}"
    kept = rest >= int(budget.memory_bytes * (1 - budget.memory_fraction))
    detail = f"{asked} kept free, and rounding" if kept else f"less than the {asked} that should stay free"
    return (*lines, LedgerLine("margin", rest, "chosen", detail))
