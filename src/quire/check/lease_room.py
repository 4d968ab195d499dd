"""Room for leases: those that are held, and those that were granted with requests that have not ended.

    held      pages of its boundary: whole units of tails, as far as the cache keeps them; of several leases each once
    booked    the most that a lease takes which ends anywhere up to prompt + max_tokens; what a lease holds counts there

memory    both together fit the sheets that the plan has for leases, on every stage
refused   only what would not fit if all units that a tail touches count whole
quota     both together, all of each lease, are no more bytes than the quota of their key
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from random import Random

import numpy as np

from quire.check import state
from quire.check.definitions import Ints, Violation, seen
from quire.check.prefixes import Boundary, Prefixes
from quire.core.request import Request
from quire.core.units import ceil_div
from quire.kinds import Keeps, State
from quire.plan.plan import KindPlan, Plan
from quire.scheduler.scheduler import Scheduler

QUOTA_SHARE = 0.4
"""Of episodes: their tenants have quotas."""

Quotas = dict[str, int]
"""By tenant: bytes of leases."""


def random_quotas(random: Random, plan: Plan, tenants: tuple[str, ...]) -> Quotas:
    """Some tenants have room for a lease or two, some for less than one, others for any number."""
    if plan.no_reuse_because or random.random() >= QUOTA_SHARE:
        return {}
    kinds = [kind for stage in plan.stages for kind in stage.kinds]
    size = sum(most_held(kind, plan.reuse_unit_tokens, plan.max_length) * kind.page_bytes for kind in kinds)
    drawn = {tenant: random.choice((None, 0.5, 1.0, 1.5, 2.5)) for tenant in tenants}
    return {tenant: int(share * size) for tenant, share in drawn.items() if share is not None}


def most_held(plan: KindPlan, unit: int, length: int) -> int:
    """The most pages of a kind that a lease takes which ends after up to `length` tokens."""
    if isinstance(plan.kind, State):
        return plan.groups
    return plan.groups * max(_held_at(plan, unit, end) for end in range(1, length + 1))


def units_read(plan: KindPlan, unit: int, end: int) -> list[int]:
    """Units that hold what the token after `end` tokens sees of the past."""
    runs = [(begin, min(stop, end)) for begin, stop in seen(plan.kind, end, end + 1)]
    return sorted({one for begin, stop in runs if begin < stop for one in range(begin // unit, ceil_div(stop, unit))})


def _held_at(plan: KindPlan, unit: int, end: int) -> int:
    ends = [(begin * unit, min(end, begin * unit + unit)) for begin in units_read(plan, unit, end)]
    return sum(ceil_div(stop, plan.page_tokens) - begin // plan.page_tokens for begin, stop in ends)


class LeaseRoom:
    """What all leases take, from the index's pages and the definition of the attention."""

    def __init__(
        self, scheduler: Scheduler, prefixes: Prefixes, quotas: Mapping[str, int], size_away: Callable[[str], int]
    ) -> None:
        """`size_away`: bytes of the records of a lease in a tier, by its name."""
        self._scheduler, self._prefixes, self.quotas, self._size_away = scheduler, prefixes, quotas, size_away
        self._stages = [stage for stage in scheduler.plan.stages if stage.kinds]
        self._unit = scheduler.plan.reuse_unit_tokens
        self._most: dict[int, list[list[int]]] = {}
        """By length, stage and kind: pages of a lease at most."""

    # ── memory ────────────────────────────────────────────────────────────

    def sheets(self, held: list[Boundary], booked: list[Request]) -> list[int]:
        """By stage: whole sheets for the pages that all of them need, each once."""
        return [
            sum(
                ceil_div(self._count(stage, kind, held, booked), plan.pages_per_sheet)
                for kind, plan in enumerate(own.kinds)
            )
            for stage, own in enumerate(self._stages)
        ]

    def check_memory(self, held: list[Boundary], booked: list[Request]) -> None:
        for stage, sheets in enumerate(self.sheets(held, booked)):
            if sheets > (most := self._stages[stage].lease_sheets):
                with_requests = f", {len(booked)} of them of requests" if booked else ""
                raise Violation(f"leases need {sheets} sheets of stage {stage}, and may take {most}{with_requests}")

    def surely_fit(self, held: list[Boundary]) -> bool:
        """Whether these leases fit, whatever is counted of units that tails touch in part."""
        return all(
            sum(ceil_div(self._whole(kind, held), kind.pages_per_sheet) for kind in stage.kinds) <= stage.lease_sheets
            for stage in self._stages
        )

    def _whole(self, plan: KindPlan, held: list[Boundary]) -> int:
        if isinstance(plan.kind, State):
            return plan.groups * len({one.path.item(-1) for one in held})
        touched = [one.path if plan.kind.grows else one.path[self._tail_units(one.tokens)] for one in held]
        ends = state.nodes(self._scheduler).tokens[np.unique(np.concatenate(touched))] % self._unit
        return plan.groups * int(np.ceil(np.where(ends, ends, self._unit) / plan.page_tokens).sum())

    def _tail_units(self, end: int) -> list[int]:
        """Units that any kind with a tail reads after `end` tokens, and what is there of the next one."""
        tailed = [kind for stage in self._stages for kind in stage.kinds if kind.kind.keeps is Keeps.TAIL]
        rest = {end // self._unit} if end % self._unit else set()
        return sorted(rest | {unit for kind in tailed for unit in units_read(kind, self._unit, end)})

    def _count(self, stage: int, kind: int, held: list[Boundary], booked: list[Request]) -> int:
        pages = np.unique(np.concatenate([self.pages(stage, kind, one) for one in held] or [np.empty(0, np.int64)]))
        return len(pages) + sum(self._new(stage, kind, one, pages) for one in booked)

    def pages(self, stage: int, kind: int, boundary: Boundary) -> Ints:
        """Pages that the cache holds for a boundary."""
        plan = self._stages[stage].kinds[kind]
        nodes = boundary.path[-1:]
        if not isinstance(plan.kind, State):
            nodes = boundary.path[units_read(plan, self._unit, boundary.tokens)]
        return self._kept(stage, kind, nodes)

    def _kept(self, stage: int, kind: int, nodes: Ints) -> Ints:
        present = state.present(self._scheduler, stage, kind)[nodes]
        return np.asarray(state.kept_pages(self._scheduler, stage, kind)[nodes][present].ravel(), dtype=np.int64)

    def _new(self, stage: int, kind: int, request: Request, held: Ints) -> int:
        """Pages at most that a request's lease will add to those that are held."""
        most = self._most_of(request.limit)[stage][kind]
        if not self._stages[stage].kinds[kind].kind.grows:
            return most
        by_key = state.nodes(self._scheduler).by_key
        along = self._prefixes.keys(request)[: self._prefixes.depth(request)]
        nodes = np.array([by_key[key] for key in along], dtype=np.int64)
        return most - int(np.isin(self._kept(stage, kind, nodes), held).sum())

    def _most_of(self, length: int) -> list[list[int]]:
        if length not in self._most:
            kinds = [stage.kinds for stage in self._stages]
            self._most[length] = [[most_held(one, self._unit, length) for one in own] for own in kinds]
        return self._most[length]

    # ── quotas ────────────────────────────────────────────────────────────

    def check_quotas(self, held: Mapping[str, tuple[str, Boundary | None]], booked: Mapping[str, Request]) -> None:
        """`held`: by lease its owner and its boundary, None in a tier; `booked`: by lease."""
        if not self.quotas:
            return
        sizes: Counter[tuple[str, str]] = Counter()
        for name, (owner, boundary) in held.items():
            sizes[owner, name] = self._size_away(name) if boundary is None else self._size(boundary)
        for name, request in booked.items():  # while both are there, the session has what either needs
            sizes[request.tenant, name] = max(sizes[request.tenant, name], self._size_booked(request.limit))
        for owner, quota in self.quotas.items():
            if (taken := sum(size for (key, _), size in sizes.items() if key == owner)) > quota:
                raise Violation(f"leases of tenant {owner!r} take {taken:,} bytes, and its quota is {quota:,}")

    def _size(self, boundary: Boundary) -> int:
        return sum(
            len(np.unique(self.pages(stage, kind, boundary))) * plan.page_bytes
            for stage, own in enumerate(self._stages)
            for kind, plan in enumerate(own.kinds)
        )

    def _size_booked(self, length: int) -> int:
        both = zip(self._stages, self._most_of(length), strict=True)
        return sum(
            count * plan.page_bytes for own, counts in both for plan, count in zip(own.kinds, counts, strict=True)
        )
