"""What a tier keeps of a prefix: named records, cut so that a lookup of names alone decides whether there is a hit.

    unit record        everything that kinds which grow keep of one unit of tokens
    boundary record    everything that the other kinds need to continue at one place: window tails, sinks, checkpoints;
                       between two units, where a turn ended, also what kinds that grow keep after the last unit
    mark               no bytes: if no kind grows, its name says that a turn ended after a unit and before the next one

A prefix can be loaded if the records of all its units are there, and the boundary record of its end.
A record is its pages one after another: stage by stage, kind by kind, page by page, group by group.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from quire.core.errors import PlanError
from quire.core.tier import Ends, Found, Load
from quire.core.units import ceil_div
from quire.kinds import Keeps, Kind, counts
from quire.plan.plan import HostPlan, KindPlan, Plan

Logical = npt.NDArray[np.int64]
"""Numbers of pages, counted from a request's first token."""
UNIT, BOUNDARY, MARK = b"u", b"b", b"m"
MOST_MARKS = 4
"""After how many marked units ends of turns are looked up: each mark may come from another conversation."""
SESSION_TOKENS = 8192
"""Length of the idle sessions that the size of host memory is expressed in."""


def unit_name(key: bytes) -> bytes:
    return UNIT + key


def boundary_name(key: bytes) -> bytes:
    return BOUNDARY + key


def mark_name(key: bytes) -> bytes:
    return MARK + key


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """Pages of one kind on one stage (counted among stages that keep anything)."""

    stage: int
    kind: int
    plan: KindPlan
    logical: Logical

    @property
    def bytes(self) -> int:
        return len(self.logical) * self.plan.unique_page_bytes


class Records:
    """How prefixes are cut into the records that tiers keep."""

    def __init__(self, plan: Plan) -> None:
        self.unit_tokens = plan.reuse_unit_tokens
        self._kinds = _kinds(plan)
        self._growing = [one for one in self._kinds if one[2].kind.grows]
        self._others = [one for one in self._kinds if not one[2].kind.grows]
        self.has_units, self.has_boundaries = bool(self._growing), bool(self._others)
        self.unit_bytes = size_bytes(self.in_unit(0))
        self.largest_boundary_bytes = self._boundary_bytes(plan.max_length)
        blocks = self.unit_tokens // (plan.host_block_tokens or self.unit_tokens)
        self.block_bytes = max(1, ceil_div(self.unit_bytes, blocks) or self.largest_boundary_bytes)
        """Staging memory is cut into blocks of this size: a unit or an equal part of one, or a boundary if no kind
        grows."""

    def in_unit(self, unit: int) -> list[Span]:
        return self.between(unit * self.unit_tokens, (unit + 1) * self.unit_tokens)

    def between(self, begin: int, end: int) -> list[Span]:
        """Pages of kinds that grow, for tokens [begin, end); `begin` is the end of a page."""
        return [
            Span(stage, kind, plan, np.arange(begin // plan.page_tokens, ceil_div(end, plan.page_tokens)))
            for stage, kind, plan in self._growing
        ]

    def at(self, boundary: int) -> list[Span]:
        """To continue at `boundary`: pages of kinds that do not grow, and of kinds that grow those in no whole unit."""
        whole = boundary // self.unit_tokens * self.unit_tokens
        growing = self.between(whole, boundary) if whole < boundary else []
        tails = [
            (stage, kind, plan, tail_pages(plan.kind, plan.page_tokens, boundary)) for stage, kind, plan in self._others
        ]
        return growing + [Span(*tail) for tail in tails]

    def greatest(self, keys: Sequence[bytes], ends: Ends, found: Callable[[list[bytes]], list[bool]]) -> Found:
        """The end of the longest prefix after which every kind can continue; `found` says which records exist."""
        if not self.has_units:
            return self._greatest_marked(keys, ends, found)
        units = found([unit_name(key) for key in keys])
        depth = units.index(False) if False in units else len(units)
        if not self.has_boundaries:
            return Found(depth)
        places = [Found(unit) for unit in range(1, depth + 1)]
        behind = ends(depth)
        places += [Found(depth, tokens) for tokens in range(1, len(behind) + 1)]
        is_there = found([boundary_name(key) for key in (*keys[:depth], *behind)])
        return max((place for place, one in zip(places, is_there, strict=True) if one), default=Found(0))

    @staticmethod
    def _greatest_marked(keys: Sequence[bytes], ends: Ends, found: Callable[[list[bytes]], list[bool]]) -> Found:
        """The same if no kind grows: there are no unit records, so marks say after which units to look for ends."""
        there = found([boundary_name(key) for key in keys] + [mark_name(key) for key in keys])
        whole, marked = (
            [unit for unit, one in enumerate(own, 1) if one] for own in (there[: len(keys)], there[len(keys) :])
        )
        best = max(whole, default=0)
        for unit in (*marked[: -MOST_MARKS - 1 : -1], 0):
            if unit < best:
                break
            behind = [tokens for tokens, one in enumerate(found([boundary_name(key) for key in ends(unit)]), 1) if one]
            if behind:
                return Found(unit, behind[-1])
        return Found(best)

    def wanted(self, load: Load) -> list[tuple[bytes, int]]:
        """Names and sizes of a load's records: units that the row does not hold completely, then the boundary."""
        keys = load.keys[load.held_tokens // self.unit_tokens :] if self.has_units else ()
        units = [(unit_name(key), self.unit_bytes) for key in keys]
        if not self.has_boundaries:
            return units
        return [*units, (boundary_name(load.end or load.keys[-1]), size_bytes(self.at(load.tokens)))]

    def contents(self, load: Load) -> list[list[Span]]:
        """The pages in each record of a load, in the order of `wanted`."""
        first = load.held_tokens // self.unit_tokens
        units = [self.in_unit(unit) for unit in range(first, len(load.keys))] if self.has_units else []
        return [*units, self.at(load.tokens)] if self.has_boundaries else units

    def prefix_bytes(self, tokens: int) -> int:
        """Bytes of all records of a prefix of `tokens` tokens."""
        boundary = size_bytes(self.at(tokens)) if self.has_boundaries else 0
        return tokens // self.unit_tokens * self.unit_bytes + boundary

    def most_prefix_bytes(self, tokens: int) -> int:
        """An upper bound for all prefixes of up to `tokens` tokens."""
        return tokens // self.unit_tokens * self.unit_bytes + self._boundary_bytes(tokens)

    def _boundary_bytes(self, tokens: int) -> int:
        """An upper bound for all boundaries up to `tokens` tokens."""
        others = sum(self.most_pages(plan, tokens) * plan.unique_page_bytes for _, _, plan in self._others)
        return others + self.unit_bytes if others else 0

    def most_pages(self, plan: KindPlan, tokens: int) -> int:
        """The most pages of one kind that an idle request of up to `tokens` tokens keeps, by the demand of rows."""
        page_tokens = plan.page_tokens
        if plan.kind.grows:
            return self._whole(tokens) // page_tokens
        last = max(tokens, self.unit_tokens)  # a turn may also end after the last whole unit
        boundaries = np.arange(max(1, last - plan.kind.period_tokens(page_tokens)), last + 1)
        return int(plan.kind.pages(boundaries, counts(0), counts(0), page_tokens).max())

    def _whole(self, tokens: int) -> int:
        """`tokens` rounded down to whole units, at least one."""
        return self.unit_tokens * max(1, tokens // self.unit_tokens)

    def blocks(self, size: int) -> int:
        return ceil_div(size, self.block_bytes)

    def session_blocks(self, tokens: int) -> int:
        """Blocks of staging memory that an idle session of up to `tokens` tokens takes."""
        units = self._whole(tokens) // self.unit_tokens
        return max(1, units * self.blocks(self.unit_bytes) + self.blocks(self._boundary_bytes(tokens)))


def _kinds(plan: Plan) -> list[tuple[int, int, KindPlan]]:
    stages = [stage for stage in plan.stages if stage.kinds]
    return [(s, k, kind) for s, stage in enumerate(stages) for k, kind in enumerate(stage.kinds)]


def host_plan(plan: Plan, budget_bytes: int) -> HostPlan:
    """What a budget of host memory holds: blocks, and in them idle sessions of 8k tokens, each byte once."""
    records, kinds = Records(plan), [kind for _, _, kind in _kinds(plan)]
    tokens = records.unit_tokens * max(1, min(SESSION_TOKENS, plan.max_length) // records.unit_tokens)
    blocks, each = budget_bytes // records.block_bytes, records.session_blocks(tokens)
    page_bytes: Counter[str] = Counter()
    for kind in kinds:
        page_bytes[kind.name] += kind.unique_page_bytes
    return HostPlan(
        budget_bytes=budget_bytes,
        block_bytes=records.block_bytes,
        blocks=blocks,
        pages=MappingProxyType({kind.name: blocks * records.most_pages(kind, tokens) // each for kind in kinds}),
        page_bytes=MappingProxyType(dict(page_bytes)),
        warm_sessions=blocks // each,
        session_tokens=tokens,
    )


def check_host_block(plan: Plan) -> None:
    """Refuses a block that is not whole pages, or that does not divide a unit."""
    asked, unit = plan.host_block_tokens, plan.reuse_unit_tokens
    growing = {kind.page_tokens: kind.name for _, _, kind in _kinds(plan) if kind.kind.grows}
    if asked is None:
        return
    if not growing:
        raise PlanError(f"--host-block {asked:,}: nothing of {plan.model} grows with its tokens: leave it out")
    page = math.lcm(*growing)
    if asked % page or unit % asked:
        pages = " and ".join(f"{tokens} tokens ({name})" for tokens, name in growing.items())
        fitting = ", ".join(str(size) for size in range(page, unit + 1, page) if unit % size == 0)
        raise PlanError(
            f"--host-block {asked:,} must be whole pages of {pages} and divide the {unit:,} tokens of a match unit: "
            f"choose one of {fitting}"
        )


def tail_pages(kind: Kind, page_tokens: int, boundary: int) -> Logical:
    """Pages of a kind that does not grow which a request needs to continue at `boundary`."""
    if kind.keeps is Keeps.STATE:
        return np.zeros(1, dtype=np.int64)
    settled = counts(boundary)
    kept = np.arange(int(kind.kept_pages(settled, page_tokens)))
    first, end = int(kind.first_page(settled, page_tokens)), ceil_div(boundary, page_tokens)
    return np.concatenate([kept, np.arange(first, end)])


def size_bytes(spans: Sequence[Span]) -> int:
    return sum(span.bytes for span in spans)
