"""What a tier keeps of a prefix: records, each under a name, cut so that a hit can be proved by names alone.

    unit record        everything that kinds which grow keep of one unit of tokens
    boundary record    everything that the other kinds need to go on behind a unit: window tails, sinks, checkpoints

A prefix of n units can be brought back if the unit records of all n are there, and the boundary record of the last.
A record is its pages one after another: stage by stage, kind by kind, page by page, group by group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quire.core.units import ceil_div
from quire.kinds import counts
from quire.plan.plan import KindPlan, Plan

Logical = npt.NDArray[np.int64]
"""Numbers of pages, counted from a request's first token."""
UNIT, BOUNDARY = b"u", b"b"


def unit_name(key: bytes) -> bytes:
    return UNIT + key


def boundary_name(key: bytes) -> bytes:
    return BOUNDARY + key


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """Pages of one kind on one stage (counted among stages that keep anything)."""

    stage: int
    kind: int
    plan: KindPlan
    logical: Logical

    @property
    def bytes(self) -> int:
        return len(self.logical) * self.plan.groups * self.plan.page_bytes


class Records:
    def __init__(self, plan: Plan) -> None:
        self.unit_tokens = plan.reuse_unit_tokens
        self.max_length = plan.max_length
        stages = [stage for stage in plan.stages if stage.kinds]
        kinds = [(s, k, kind) for s, stage in enumerate(stages) for k, kind in enumerate(stage.kinds)]
        self._growing = [one for one in kinds if one[2].kind.grows]
        self._others = [one for one in kinds if not one[2].kind.grows]
        self.has_units, self.has_boundaries = bool(self._growing), bool(self._others)
        self.unit_bytes = size_bytes(self.in_unit(0))
        self.block_bytes = self.unit_bytes or self.largest_boundary_bytes
        """Staging memory is cut into blocks of this size: one unit, or one boundary where nothing grows."""

    def in_unit(self, unit: int) -> list[Span]:
        return self.between(unit * self.unit_tokens, (unit + 1) * self.unit_tokens)

    def between(self, begin: int, end: int) -> list[Span]:
        """Of kinds that grow, from one token to another, both at ends of pages."""
        return [
            Span(stage, kind, plan, np.arange(begin // plan.page_tokens, end // plan.page_tokens))
            for stage, kind, plan in self._growing
        ]

    def at(self, boundary: int) -> list[Span]:
        """Of the other kinds, for a request that goes on at `boundary`, a whole number of units."""
        return [Span(stage, kind, plan, _tail(plan, boundary)) for stage, kind, plan in self._others]

    @property
    def largest_boundary_bytes(self) -> int:
        return size_bytes(self.at(self.unit_tokens * max(1, self.max_length // self.unit_tokens)))

    def blocks(self, size: int) -> int:
        return ceil_div(size, self.block_bytes)

    def session_bytes(self, tokens: int) -> int:
        """What staging memory an idle session of so many tokens takes."""
        units = tokens // self.unit_tokens
        boundary = size_bytes(self.at(units * self.unit_tokens))
        return self.block_bytes * (units * self.blocks(self.unit_bytes) + self.blocks(boundary))


def _tail(plan: KindPlan, boundary: int) -> Logical:
    if plan.kind.kind == "state":
        return np.zeros(1, dtype=np.int64)
    settled, page_tokens = counts(boundary), plan.page_tokens
    kept = np.arange(int(plan.kind.kept_pages(settled, page_tokens)))
    return np.concatenate([kept, np.arange(int(plan.kind.first_page(settled, page_tokens)), boundary // page_tokens)])


def size_bytes(spans: Sequence[Span]) -> int:
    return sum(span.bytes for span in spans)
