"""The one bound. Boot check, automatic length, admission, reservations, planner and simulator all use it.

Fit is always counted in whole sheets:  sheets_needed = Σ over kinds ⌈(pages + reserved) ÷ pages per sheet⌉.

    minimum(L)       sheets without which a lone request could not reach L, one token at a time
    resident(L)      pages in steady decode: L − 1 settled, one being computed (with s lookahead tokens: L − 1 − s)
    peak(L, chunk)   sheets a lone request takes at most with `chunk` tokens in flight
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from quire.core.search import greatest
from quire.core.units import ceil_div
from quire.kinds import Counts, counts, decisive_moments
from quire.plan.plan import KindPlan, Plan

Kinds = Sequence[KindPlan]


def demand(kinds: Kinds, settled: Counts, new: Counts, ahead: Counts, limit: Counts) -> list[Counts]:
    """Pages of each kind, all groups, for requests that may grow to `limit` tokens, which clips the lookahead."""
    ahead = np.minimum(ahead, limit - settled - new) if np.count_nonzero(ahead) else ahead
    return [kind.groups * kind.kind.pages(settled, new, ahead, kind.page_tokens) for kind in kinds]


def sheets_needed(kinds: Kinds, pages: Sequence[Counts], reserved: int = 0) -> Counts:
    """Whole sheets for the given pages of each kind, the backend's own pages included."""
    sheets = [-(-(count + reserved) // kind.pages_per_sheet) for kind, count in zip(kinds, pages, strict=True)]
    return counts(sum(sheets[1:], start=sheets[0])) if sheets else counts(0)


def peak(kinds: Kinds, length: int, chunk: int, ahead: int, reserved: int = 0) -> int:
    """The most sheets a lone request of `length` takes at any moment. Exact: the last period decides."""
    return int(sheets_needed(kinds, _alone(kinds, length, chunk, ahead), reserved).max(initial=0))


def _alone(kinds: Kinds, length: int, chunk: int, ahead: int) -> list[Counts]:
    """Pages of each kind for a lone request, at all moments where a maximum can occur."""
    period = math.lcm(*(kind.kind.period_tokens(kind.page_tokens) for kind in kinds))
    return demand(kinds, *decisive_moments(length, chunk, ahead, period), counts(length))


def minimum(kinds: Kinds, length: int, ahead: int, reserved: int = 0) -> int:
    return peak(kinds, length, 1, ahead, reserved)


def minimum_by_kind(kinds: Kinds, length: int, ahead: int, reserved: int = 0) -> list[int]:
    """Sheets that each kind takes of the minimum, at the moment when all kinds together take most."""
    pages = _alone(kinds, length, 1, ahead)
    moment = sheets_needed(kinds, pages, reserved).argmax()
    return [int(sheets_needed((k,), (own,), reserved)[moment]) for k, own in zip(kinds, pages, strict=True)]


def resident(kinds: Kinds, length: int, ahead: int) -> list[int]:
    """Pages of each kind for one request in steady decode whose tokens reach `length`, its lookahead included."""
    ahead = min(ahead, length - 1)
    return [int(p) for p in demand(kinds, counts(length - 1 - ahead), counts(1), counts(ahead), counts(length))]


def longest(kinds: Kinds, sheets_at: Callable[[int], int], ahead: int, reserved: int, limit: int) -> int:
    """The greatest length up to `limit` whose minimum fits, 0 if none.

    The minimum never falls with length, and the sheets left by larger tables (`sheets_at`) never rise, so bisection is
    exact.
    """
    return greatest(0, limit, lambda length: minimum(kinds, length, ahead, reserved) <= sheets_at(length))


def admits(plan: Plan, length: int) -> bool:
    """Admission on an empty pool: could a request of `length` run alone?

    The plan's longest length is the greatest whose minimum fits, and the minimum never falls with length.
    """
    return 1 <= length <= plan.max_length


def stage_concurrency(
    kinds: Kinds, sheets: int, length: int, ahead: int, reserved: int = 0, beside_chunk: int = 0
) -> int:
    """How many unshared requests in steady decode at `length` fit together with `beside_chunk` tokens in flight.

    A chunk longer than `length` belongs to several new requests.
    """
    each = resident(kinds, length, ahead)
    beside = [0] * len(each)
    if beside_chunk:
        whole, rest = divmod(beside_chunk, length)
        newcomers = counts(np.array([length] * min(whole, 1) + [rest] * (rest > 0), dtype=np.int64))
        times = np.array([whole] * min(whole, 1) + [1] * (rest > 0))
        each_newcomer = demand(kinds, np.zeros_like(newcomers), newcomers, counts(ahead), counts(length))
        beside = [int((pages * times).sum()) for pages in each_newcomer]

    def fits(requests: int) -> bool:
        pages = [counts(requests * one + extra) for one, extra in zip(each, beside, strict=True)]
        return int(sheets_needed(kinds, pages, reserved)) <= sheets

    most = min(ceil_div(sheets * k.pages_per_sheet, max(one, 1)) for k, one in zip(kinds, each, strict=True))
    return greatest(0, most, fits)


def concurrency(plan: Plan, length: int, with_prefill: bool = False) -> int:
    """The least `stage_concurrency` of all stages that keep anything; 0 for a length that is not admitted."""
    if not 1 <= length <= plan.max_length:
        return 0
    chunk = plan.batch_tokens if with_prefill else 0
    return min(
        stage_concurrency(stage.kinds, stage.sheets, length, plan.lookahead, plan.reserved_pages, chunk)
        for stage in plan.stages
        if stage.kinds
    )
