"""Where a length that could never run comes short: on which stage, and for which kinds."""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.reasons import SHEETS_FOR
from quire.plan import bound
from quire.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class Tightest:
    """The stage where a lone request leaves least, or goes furthest beyond what there is."""

    by_kind: dict[str, int]
    """Sheets of each kind, at the moment when all together take most."""
    sheets: int
    """That there are."""
    stage: int | None
    """None where there is one stage only."""

    @property
    def needed(self) -> int:
        return sum(self.by_kind.values())

    @property
    def numbers(self) -> dict[str, int]:
        """For a reason; none if sheets are not what is short, but a length that was asked for."""
        if self.needed <= self.sheets:
            return {}
        by_kind = {f"{SHEETS_FOR}{kind}": sheets for kind, sheets in self.by_kind.items()}
        return {"sheets": self.sheets, **by_kind, **({} if self.stage is None else {"stage": self.stage})}


def tightest(plan: Plan, length: int) -> Tightest:
    found = []
    for index, stage in enumerate(plan.stages):
        needed = bound.minimum_by_kind(stage.kinds, length, plan.lookahead, plan.reserved_pages)
        by_kind = {kind.name: sheets for kind, sheets in zip(stage.kinds, needed, strict=True)}
        found.append(Tightest(by_kind, stage.sheets, index if len(plan.stages) > 1 else None))
    return max((one for one in found if one.by_kind), key=lambda one: one.needed / max(1, one.sheets))
