"""What a tier keeps of a prefix: records, each under a name, cut so that a hit can be proved by names alone.

    unit record        everything that kinds which grow keep of one unit of tokens
    boundary record    everything that the other kinds need to go on at one place: window tails, sinks, checkpoints;
                       between two units, where a turn ended, also what kinds that grow keep behind the last unit
    mark               nothing: where no kind grows, its name says that a turn ended behind a unit, before the next one

A prefix can be brought back if the records of all its units are there, and the boundary record of its end.
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
from quire.kinds import Kind, counts
from quire.plan.plan import HostPlan, KindPlan, Plan

Logical = npt.NDArray[np.int64]
"""Numbers of pages, counted from a request's first token."""
UNIT, BOUNDARY, MARK = b"u", b"b", b"m"
MOST_MARKS = 4
"""Behind which ends of turns are looked for: each may be another talk's."""
SESSION_TOKENS = 8192
"""Of the idle sessions that host memory is measured by."""


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
        """Staging memory is cut into blocks of this size: so many tokens of a unit, or one boundary where nothing
        grows."""

    def in_unit(self, unit: int) -> list[Span]:
        return self.between(unit * self.unit_tokens, (unit + 1) * self.unit_tokens)

    def between(self, begin: int, end: int) -> list[Span]:
        """Of kinds that grow, from the end of a page on."""
        return [
            Span(stage, kind, plan, np.arange(begin // plan.page_tokens, ceil_div(end, plan.page_tokens)))
            for stage, kind, plan in self._growing
        ]

    def at(self, boundary: int) -> list[Span]:
        """For a request that goes on at `boundary`: of the other kinds, and of those that grow what is in no unit."""
        whole = boundary // self.unit_tokens * self.unit_tokens
        growing = self.between(whole, boundary) if whole < boundary else []
        tails = [
            (stage, kind, plan, tail_pages(plan.kind, plan.page_tokens, boundary)) for stage, kind, plan in self._others
        ]
        return growing + [Span(*tail) for tail in tails]

    def greatest(self, keys: Sequence[bytes], ends: Ends, found: Callable[[list[bytes]], list[bool]]) -> Found:
        """The end of the longest prefix behind which every kind can go on; `found` says which records are there."""
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
        """Where no kind grows, no unit leads to an end between two of them: marks do."""
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
        """Names and sizes of what a load brings: units that the row does not hold whole, then the boundary."""
        keys = load.keys[load.held_tokens // self.unit_tokens :] if self.has_units else ()
        units = [(unit_name(key), self.unit_bytes) for key in keys]
        if not self.has_boundaries:
            return units
        return [*units, (boundary_name(load.end or load.keys[-1]), size_bytes(self.at(load.tokens)))]

    def prefix_bytes(self, tokens: int) -> int:
        """All records of a prefix of so many tokens."""
        boundary = size_bytes(self.at(tokens)) if self.has_boundaries else 0
        return tokens // self.unit_tokens * self.unit_bytes + boundary

    def most_prefix_bytes(self, tokens: int) -> int:
        """No prefix of up to so many tokens takes more."""
        return tokens // self.unit_tokens * self.unit_bytes + self._boundary_bytes(tokens)

    def _boundary_bytes(self, tokens: int) -> int:
        """No boundary up to so many tokens takes more."""
        others = sum(self.most_pages(plan, tokens) * plan.unique_page_bytes for _, _, plan in self._others)
        return others + self.unit_bytes if others else 0

    def most_pages(self, plan: KindPlan, tokens: int) -> int:
        """Of one kind, what an idle request of up to so many tokens keeps, by the demand that rows have too."""
        page_tokens = plan.page_tokens
        if plan.kind.grows:
            return self._whole(tokens) // page_tokens
        last = max(tokens, self.unit_tokens)  # a turn may also end behind the last whole unit
        boundaries = np.arange(max(1, last - plan.kind.period_tokens(page_tokens)), last + 1)
        return int(plan.kind.pages(boundaries, counts(0), counts(0), page_tokens).max())

    def _whole(self, tokens: int) -> int:
        """Whole units of so many tokens, at least one."""
        return self.unit_tokens * max(1, tokens // self.unit_tokens)

    def blocks(self, size: int) -> int:
        return ceil_div(size, self.block_bytes)

    def session_blocks(self, tokens: int) -> int:
        """What an idle session of up to so many tokens takes of staging memory."""
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
    """A block that would cut a page, or of which no whole number makes up a unit, is refused."""
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
    """What a kind that does not grow keeps for whoever goes on at `boundary`."""
    if kind.kind == "state":
        return np.zeros(1, dtype=np.int64)
    settled = counts(boundary)
    kept = np.arange(int(kind.kept_pages(settled, page_tokens)))
    first, end = int(kind.first_page(settled, page_tokens)), ceil_div(boundary, page_tokens)
    return np.concatenate([kept, np.arange(first, end)])


def size_bytes(spans: Sequence[Span]) -> int:
    return sum(span.bytes for span in spans)
