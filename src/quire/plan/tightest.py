"""Why a length could never run: the stage and the kinds that lack sheets, as numbers and as a sentence.

The sentence is made here, not in `explain/sentences.py`, because the error that `submit` raises contains it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from quire.core.reasons import SHEETS_FOR, Reason, Why
from quire.core.request import Request
from quire.core.units import format_count
from quire.plan import bound
from quire.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class Tightest:
    """The stage where a lone request takes the greatest part of the sheets, or exceeds them most."""

    by_kind: dict[str, int]
    """Sheets of each kind, at the moment when all kinds together take most."""
    sheets: int
    """Sheets of the stage that requests may take."""
    stage: int | None
    """None if there is only one stage."""

    @property
    def needed(self) -> int:
        return sum(self.by_kind.values())

    @property
    def numbers(self) -> dict[str, int]:
        """For a reason; empty if there are enough sheets and the request exceeds a requested maximum length."""
        if self.needed <= self.sheets:
            return {}
        by_kind = {f"{SHEETS_FOR}{kind}": sheets for kind, sheets in self.by_kind.items()}
        return {"sheets": self.sheets, **by_kind, **({} if self.stage is None else {"stage": self.stage})}


def tightest(plan: Plan, length: int) -> Tightest:
    found = []
    for index, stage in enumerate(plan.stages):
        needed = bound.minimum_by_kind(stage.kinds, length, plan.lookahead, plan.reserved_pages)
        by_kind = {kind.name: sheets for kind, sheets in zip(stage.kinds, needed, strict=True)}
        sheets = stage.request_sheets if plan.requested_max_length is None else stage.sheets
        found.append(Tightest(by_kind, sheets, index if len(plan.stages) > 1 else None))
    return max((one for one in found if one.by_kind), key=lambda one: one.needed / max(1, one.sheets))


def why_never(plan: Plan, request: Request) -> Reason:
    """The reason for refusing a request that could not run alone."""
    numbers = {"prompt": len(request.prompt), "max_tokens": request.max_tokens, "max_length": plan.max_length}
    return Reason(Why.NEVER_FITS, (request.name,), numbers | tightest(plan, request.limit).numbers)


def never_fits(reason: Reason) -> str:
    """The sentence for a reason from `why_never`."""
    prompt, output, longest = (f"{int(reason.numbers[name]):,}" for name in ("prompt", "max_tokens", "max_length"))
    short = sheets_short(reason.numbers)
    size = f"{prompt} + {output} tokens"
    return f"request {reason.requests[0]} of {size} can never run: {short}the longest that fits is {longest} tokens"


def sheets_short(numbers: Mapping[str, float]) -> str:
    """Half a sentence on the sheets that a request lacks; empty where it lacks none."""
    if "sheets" not in numbers:
        return ""
    kinds = {name.removeprefix(SHEETS_FOR): int(n) for name, n in numbers.items() if name.startswith(SHEETS_FOR)}
    by_kind = ", ".join(f"{sheets:,} for {kind}" for kind, sheets in kinds.items())
    place = f" on stage {numbers['stage']:.0f}" if "stage" in numbers else ""
    needs = f"it needs {format_count(sum(kinds.values()), 'sheet')} ({by_kind})"
    return f"{needs} and there are {numbers['sheets']:,.0f}{place}; "
