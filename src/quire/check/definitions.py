"""What each kind's tokens read, straight from the definition of the attention: nothing here asks a kind's own rules.

    key     0 1 2 3 4 5 6 7
    query 5 · · · ▓ ▓ ▓           window 3: itself and the two tokens before it
    query 6 · · · · ▓ ▓ ▓         both together see [3, 7)

Sets of logical pages are whole numbers, bit l for page l, so that sets can be compared at every step. A test compares
these intervals with masks, query by query.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from quire.core.errors import QuireError
from quire.core.units import ceil_div
from quire.kinds import Cross, Kind, State
from quire.plan.plan import KindPlan, Plan, StagePlan

Ints = npt.NDArray[np.int64]
Run = tuple[int, int]
"""Positions [begin, end)."""


class Violation(QuireError):
    """A promise that was not kept: always a bug in Quire, or one that was planted."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The most tokens of windows, chunks and sinks, and the tokens that a page may have."""

    window: int
    chunk: int
    sinks: int
    pages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Definition:
    """A kind as its attention is defined, written without looking at the kind's rules."""

    seen: Callable[[Mapping[str, Any], int, int], tuple[Run, ...]]
    """From the kind's numbers: positions before `end` that a token from `first` on attends to, also a later one."""
    small: Mapping[str, Any] = field(default_factory=dict)
    """Its numbers in systems whose every schedule is explored."""
    random: Callable[[Random, Sizes], dict[str, Any]] = lambda _random, _sizes: {}
    """Its numbers in random systems."""


def _all(_numbers: Mapping[str, Any], _first: int, end: int) -> tuple[Run, ...]:
    return ((0, end),)


def _window(numbers: Mapping[str, Any], first: int, end: int) -> tuple[Run, ...]:
    return ((max(0, first - numbers["window"] + 1), end),)


def _chunked(numbers: Mapping[str, Any], first: int, end: int) -> tuple[Run, ...]:
    return ((first - first % numbers["chunk"], end),)


def _sink(numbers: Mapping[str, Any], first: int, end: int) -> tuple[Run, ...]:
    begin, sinks = max(0, first - numbers["window"] + 1), min(numbers["sinks"], end)
    return ((0, sinks), (begin, end)) if sinks < begin else ((0, end),)


def _random_sink(random: Random, sizes: Sizes) -> dict[str, Any]:
    return {"sinks": random.randint(1, sizes.sinks), "window": random.randint(1, sizes.window - sizes.sinks)}


DEFINITIONS: dict[str, Definition] = {
    "full": Definition(_all),
    "window": Definition(_window, {"window": 2}, lambda random, sizes: {"window": random.randint(1, sizes.window)}),
    "chunked": Definition(_chunked, {"chunk": 3}, lambda random, sizes: {"chunk": random.randint(1, sizes.chunk)}),
    "sink": Definition(_sink, {"sinks": 1, "window": 2}, _random_sink),
    "latent": Definition(_all, {}, lambda random, _: {"tokens_per_state": random.choice((1, 1, 2))}),
    "indexed": Definition(
        _all, {"top_tokens": 2}, lambda random, sizes: {"top_tokens": random.randint(1, sizes.window)}
    ),
    "state": Definition(_all, {"rewinds": True}, lambda random, _: {"rewinds": random.random() < 0.7}),
    "cross": Definition(_all, {"encoder_tokens": 2}, lambda random, _: {"encoder_tokens": random.randint(1, 9)}),
}
"""By the name of the kind."""


def seen(kind: Kind, first: int, end: int) -> tuple[Run, ...]:
    """Positions before `end` that a token from `first` on attends to, also a later one; for kinds that keep tokens."""
    return DEFINITIONS[kind.kind].seen(_numbers(kind), first, end)


@cache
def _numbers(kind: Kind) -> Mapping[str, Any]:
    return kind.numbers


def _pages_of(runs: tuple[Run, ...], page_tokens: int) -> int:
    pages = 0
    for begin, end in runs:
        if begin < end:
            pages |= (1 << ceil_div(end, page_tokens)) - (1 << begin // page_tokens)
    return pages


def pages_read(kind: Kind, page_tokens: int, settled: int, new: int) -> int:
    """Logical pages without which the `new` tokens in flight, or else the next one, could not read the past."""
    runs = seen(kind, settled, settled + max(1, new))
    return _pages_of(runs if new else tuple((begin, min(end, settled)) for begin, end in runs), page_tokens)


def pages_touched(kind: Kind, page_tokens: int, settled: int, new: int, ahead: int) -> int:
    """Demand: the same, and the pages of `ahead` lookahead tokens."""
    begin = settled + new
    return pages_read(kind, page_tokens, settled, new) | _pages_of(((begin, begin + ahead),), page_tokens)


def fixed_pages(kind: Kind, page_tokens: int, ahead: int) -> int:
    """Of kinds whose pages do not follow the tokens: a state (and one per draft token to undo), an encoder's output."""
    if isinstance(kind, Cross):
        return ceil_div(kind.encoder_tokens, page_tokens)
    return 1 + (ahead if isinstance(kind, State) and kind.rewinds else 0)


def is_fixed(kind: Kind) -> bool:
    return isinstance(kind, Cross | State)


def fits_alone(plan: Plan, length: int) -> bool:
    """Whether a request of `length` tokens could run next to all leases, one token at a time: tried at every token."""
    return 1 <= length <= plan.max_length and all(
        most_sheets(plan, s, length) <= s.sheets - s.lease_sheets for s in plan.stages
    )


def most_sheets(plan: Plan, stage: StagePlan, length: int) -> int:
    """What the bound must ask for: the most sheets that it takes at any token."""

    def sheets(kind: KindPlan, settled: int) -> int:
        pages = pages_at(kind, settled, 1, min(plan.lookahead, length - settled - 1))
        return ceil_div(pages + plan.reserved_pages, kind.pages_per_sheet)

    return max(sum(sheets(kind, settled) for kind in stage.kinds) for settled in range(length))


def pages_at(kind: KindPlan, settled: int, new: int, ahead: int) -> int:
    """Demand of one request, all groups together."""
    if is_fixed(kind.kind):
        return kind.groups * fixed_pages(kind.kind, kind.page_tokens, ahead)
    return kind.groups * pages_touched(kind.kind, kind.page_tokens, settled, new, ahead).bit_count()
