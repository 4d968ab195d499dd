"""Chooses pages and sheets by minimising wasted bytes.

    sheet (S bytes)
    ├─ page ─┼─ page ─┼─ page ─┼ tail ┤      kind A: 3 pages a sheet
    ├──── page ────┼──── page ────┼───┤      kind B: 2 pages a sheet

For a given sheet size S each kind can choose its page independently: a kind takes pages × S ÷ pages per sheet, and the
bytes that a request needs do not depend on the choice. So the search runs over sheet sizes, with an inner search for
each kind. Budget and configured length are not used: more memory or a shorter limit never changes the geometry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quire.core.errors import PlanError
from quire.core.units import MIB, ceil_div
from quire.kinds import Counts, Kind, counts
from quire.plan.layout import page_bytes, possible_groups
from quire.plan.shares import KindShare

LARGEST_SHEET = 64 * MIB
PAGE_KEEPING_BYTES = 2048
"""Overhead of one page in addition to its contents: table entries, holders and handles, and the memory worth spending
to avoid taking and returning one more page. Reported waste does not include it."""
LARGEST_TAIL = 0.005
"""Largest unused tail, as a fraction of a sheet; larger tails are accepted only if no sheet size stays below this."""
INDEX_VIEW_WASTE, INDEX_VIEW_COST = 0.005, 0.015
"""How much additional waste, and additional cost including `PAGE_KEEPING_BYTES`, is accepted so that kernels that
require index × stride can run."""
SMOOTHING = 64
"""Waste is averaged over this many consecutive lengths, to smooth out page boundaries."""
WEIGHED_WITHOUT_LIMIT = 131_072
"""Greatest length that is considered if the model has no limit of its own."""
TYPICAL_LENGTH, TYPICAL_REQUESTS = 2_048, 32
"""The load that the cost of one partly filled sheet per kind is compared with."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PageChoice:
    """How one kind is cut: `groups` tables, each page `page_tokens` tokens of slots ÷ groups layers."""

    groups: int
    page_tokens: int
    page_bytes: int


@dataclass(frozen=True, slots=True)
class Geometry:
    """The page of each kind, and the sheet that all of them are cut from."""

    sheet_bytes: int
    pages: tuple[PageChoice, ...]
    """In the order of the kinds that were given."""


def smoothed(lengths: Sequence[int]) -> Counts:
    """Row i holds the lengths L … L + 63 for lengths[i]."""
    return counts(np.asarray(lengths, dtype=np.int64)[:, None] + np.arange(SMOOTHING))


def exact_bytes(shares: Sequence[KindShare], lengths: Counts) -> Counts:
    """Bytes that are live in steady decode, without any rounding to pages."""
    return counts(sum((share.kind.units(lengths) * share.unit_bytes for share in shares), start=np.zeros_like(lengths)))


def choose_geometry(
    shares: Sequence[KindShare], model_length: int | None, forced_pages: Mapping[str, int], match_unit: int
) -> Geometry:
    lengths = _weighed_lengths(model_length or WEIGHED_WITHOUT_LIMIT, shares)
    exact = exact_bytes(shares, lengths)
    options = [_options(share, forced_pages, match_unit) for share in shares]
    weights = [_pages_per_byte(share, choices, lengths, exact) for share, choices in zip(shares, options, strict=True)]
    if len(shares) == 1:
        pages = np.array([choice.page_bytes for choice in options[0]])
        only = options[0][int(np.argmin(weights[0] * (pages + PAGE_KEEPING_BYTES)))]
        return Geometry(only.page_bytes, (only,))
    typical = exact_bytes(shares, smoothed([TYPICAL_LENGTH])).mean() * TYPICAL_REQUESTS
    sheets = _candidate_sheets(options)
    best = _best_cut(sheets, options, weights, typical, LARGEST_TAIL) or _best_cut(
        sheets, options, weights, typical, 1.0
    )
    assert best is not None, "the smallest candidate holds one page of each kind"
    view = _best_cut(sheets, options, weights, typical, 0.0)
    if view and view.waste <= best.waste + INDEX_VIEW_WASTE and view.cost <= best.cost + INDEX_VIEW_COST:
        best = view
    return Geometry(best.sheet_bytes, tuple(choices[pick] for choices, pick in zip(options, best.picks, strict=True)))


def _weighed_lengths(model_length: int, shares: Sequence[KindShare]) -> Counts:
    """512, 724, 1,024, 1,448 … up to the model's own limit: every octave counts the same.

    With folded latents the lengths start at the first whole state.
    """
    first = max(512, *(share.kind.tokens_per_unit for share in shares))
    lengths = [first]
    while lengths[-1] < model_length:
        lengths.append(int(first * 2 ** (len(lengths) / 2)))
    return smoothed(lengths)


def _options(share: KindShare, forced_pages: Mapping[str, int], match_unit: int) -> list[PageChoice]:
    kind = share.kind
    forced = forced_pages.get(kind.name)
    if forced is not None:
        kind.check_page(forced)
        sizes: tuple[int, ...] = (forced,)
    else:
        sizes = kind.page_choices(share.is_narrow)
        sizes = tuple(size for size in sizes if size <= match_unit or not kind.grows) or sizes[:1]
    return [
        PageChoice(groups, size, page_bytes(share, groups, kind.units_per_page(size)))
        for size in sizes
        for groups in possible_groups(share)
    ]


def _pages_per_byte(share: KindShare, choices: Sequence[PageChoice], lengths: Counts, exact: Counts) -> Floats:
    """For each choice: pages held per byte needed, averaged over lengths. Times page bytes: its part of waste."""
    by_size = {
        size: float((share.kind.resident(lengths, size) / exact).mean())
        for size in {choice.page_tokens for choice in choices}
    }
    return np.array([choice.groups * by_size[choice.page_tokens] for choice in choices])


def _candidate_sheets(options: Sequence[Sequence[PageChoice]]) -> Floats:
    """Multiples of some kind's page that hold a page of every kind, up to LARGEST_SHEET where that is possible."""
    smallest = max(min(choice.page_bytes for choice in choices) for choices in options)
    largest = max(LARGEST_SHEET, smallest)
    sizes: set[int] = set()
    for choices in options:
        for page in {choice.page_bytes for choice in choices}:
            first = ceil_div(smallest, page)
            sizes.update(page * count for count in range(first, min(largest // page, first + 1024) + 1))
    return np.array(sorted(sizes), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class _Cut:
    sheet_bytes: int
    waste: float
    cost: float
    picks: tuple[int, ...]


def _best_cut(
    sheets: Floats,
    options: Sequence[Sequence[PageChoice]],
    weights: Sequence[Floats],
    typical_bytes: float,
    largest_tail: float,
) -> _Cut | None:
    """The sheet of least cost when every kind chooses its best page; None if every sheet has a tail above the limit."""
    waste, cost, picks = np.zeros_like(sheets), len(options) * sheets / 2 / typical_bytes, []
    rows = np.arange(len(sheets))
    for choices, weight in zip(options, weights, strict=True):
        pages = np.array([choice.page_bytes for choice in choices], dtype=np.float64)
        per_sheet = np.floor(sheets[:, None] / pages)
        usable = (per_sheet >= 1) & (sheets[:, None] - per_sheet * pages <= largest_tail * sheets[:, None])
        with np.errstate(divide="ignore"):
            taken = np.where(usable, weight * sheets[:, None] / per_sheet, np.inf)
        pick = (taken + weight * PAGE_KEEPING_BYTES).argmin(axis=1)
        waste, cost = waste + taken[rows, pick], cost + taken[rows, pick] + weight[pick] * PAGE_KEEPING_BYTES
        picks.append(pick)
    best = int(np.argmin(cost))
    if not np.isfinite(cost[best]):
        return None
    return _Cut(int(sheets[best]), float(waste[best]), float(cost[best]), tuple(int(pick[best]) for pick in picks))


def match_unit(kinds: Sequence[Kind], page_tokens: Sequence[int], asked: int) -> int:
    """The largest unit up to `asked` that is a multiple or a divisor of the page of every kind that grows."""
    sizes = [tokens for kind, tokens in zip(kinds, page_tokens, strict=True) if kind.grows]
    for unit in range(asked, 0, -1):
        if all(unit % size == 0 or size % unit == 0 for size in sizes):
            return unit
    raise PlanError(f"no match unit up to {asked} goes with pages of {sizes}")
