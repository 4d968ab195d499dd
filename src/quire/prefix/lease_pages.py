"""What leases take: pages of each kind along a chain, and the most that the end of a request can take.

Of a kind with a tail, whole units count: the cache may hold all pages of a unit that a boundary needs. Pages that
several leases need count once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from quire.cache.memory import StageMemory
from quire.core.units import ceil_div
from quire.kinds import Keeps, counts
from quire.plan import bound
from quire.prefix.boundaries import Boundaries
from quire.prefix.coverage import Coverage
from quire.prefix.lease_sizes import Pages, most_pages
from quire.prefix.nodes import NO_NODES, Chain, Nodes


def leased_pages(memory: StageMemory, kind: int, nodes: Nodes) -> npt.NDArray[np.int64]:
    """Pages of a kind that leases keep: along the whole prefix, at its end, or the state there."""
    own = memory.stage.kinds[kind].kind
    marks = nodes.leased if own.grows else nodes.lease_ends if own.keeps is Keeps.STATE else nodes.leased_tail
    chain = np.flatnonzero(marks > 0)
    kept = memory.kept[kind]
    pages: npt.NDArray[np.int64] = kept.pages[chain][kept.present[chain]].ravel()
    return pages


class LeasePages:
    """Counts pages, sheets and bytes of leased prefixes."""

    def __init__(self, nodes: Nodes, boundaries: Boundaries, coverage: Coverage) -> None:
        self._nodes, self._boundaries, self._coverage = nodes, boundaries, coverage
        self._stages = [memory.stage for memory in coverage.memories]
        self.leased = NO_NODES
        """All whole units that are part of a lease. Pages of an end between units may be those of the whole unit."""

    def note_leased(self) -> None:
        nodes = self._nodes
        self.leased = np.flatnonzero((nodes.leased > 0) & (nodes.tokens % self._coverage.unit == 0))

    def sheets(self, stage: int, pages: Sequence[int]) -> int:
        return int(bound.sheets_needed(self._stages[stage].kinds, [counts(one) for one in pages]))

    def along(self, chain: Chain, is_counted: bool = True) -> Pages:
        """Pages that a lease of this chain adds to those that are leased. `is_counted` False: all that it takes."""
        nodes, end = self._nodes, chain.item(-1)
        tail = self._boundaries.tails.get(end, NO_NODES)
        own, own_tail, states = chain, tail, 1
        if is_counted:
            own, own_tail = chain[nodes.leased[chain] == 0], tail[nodes.leased_tail[tail] == 0]
            states = int(not nodes.lease_ends[end])
        return [
            [self.count(stage, kind, own, own_tail, states) for kind in kinds]
            for stage, kinds in enumerate(self._coverage.kinds)
        ]

    def count(self, stage: int, kind: int, chain: Chain, tail: Chain, states: int) -> int:
        """Of a kind with a tail, whole units count: the cache may hold all pages of a unit that a boundary needs."""
        plan = self._stages[stage].kinds[kind]
        if kind in self._coverage.states[stage]:
            return plan.groups * states
        own = chain if kind in self._coverage.growing[stage] else tail
        units, each = len(own), self._coverage.unit // plan.page_tokens
        pages = units * each
        if units and (rest := self._nodes.tokens.item(own.item(-1)) % self._coverage.unit):
            pages -= each - ceil_div(rest, plan.page_tokens)
        return plan.groups * pages

    def up_to(self, length: int) -> Pages:
        """The most pages that a lease of a request's tokens takes, wherever up to `length` the request ends."""
        return most_pages(self._stages, self._coverage.unit, length)

    def to_begin_at(self, tokens: int) -> Pages:
        """Pages that a request which has none takes to continue after this many tokens."""
        return [
            [kind.groups * int(kind.kind.pages(counts(tokens), counts(0), counts(0), kind.page_tokens)) for kind in own]
            for own in (stage.kinds for stage in self._stages)
        ]

    def counted_twice(self, chain: Chain) -> Pages:
        """By stage and kind: pages that running requests share with each other or with leases, and those that a request
        which continues along this chain would. Only kinds that grow count."""
        own = chain[self._nodes.leased[chain] > 0]
        return [
            [self._twice(stage, kind, chain, own) if plan.kind.grows else 0 for kind, plan in enumerate(kinds)]
            for stage, kinds in enumerate(plan.kinds for plan in self._stages)
        ]

    def _twice(self, stage: int, kind: int, chain: Chain, own: Chain) -> int:
        """`own`: nodes of the chain that are leased."""
        memory = self._coverage.memories[stage]
        among_requests = memory.pool.shelves[kind].shared + memory.held_by_requests(kind, chain)
        if not len(self.leased):
            return among_requests
        new = self.count(stage, kind, own, NO_NODES, 0) - memory.held_by_requests(kind, own)
        return among_requests + memory.held_by_requests(kind, self.leased) + new

    def size_bytes(self, pages: Pages) -> int:
        return sum(
            count * kind.page_bytes
            for stage, own in zip(self._stages, pages, strict=True)
            for kind, count in zip(stage.kinds, own, strict=True)
        )

    def union(self, chains: Collection[Chain]) -> Pages:
        """Pages of leases of these chains, each once."""
        nodes = np.unique(np.concatenate([NO_NODES, *chains]))
        ends = np.unique(np.array([chain.item(-1) for chain in chains], dtype=np.int64))
        tails = [self._boundaries.tails.get(end, NO_NODES) for end in ends.tolist()]
        tail = np.unique(np.concatenate([NO_NODES, *tails]))
        return [
            [self._count_any(stage, kind, nodes, tail, len(ends)) for kind in kinds]
            for stage, kinds in enumerate(self._coverage.kinds)
        ]

    def _count_any(self, stage: int, kind: int, chain: Chain, tail: Chain, states: int) -> int:
        """As `count`, for nodes of several chains: a node at a time between units."""
        is_partial = self._nodes.tokens[chain] % self._coverage.unit > 0
        is_partial_tail = self._nodes.tokens[tail] % self._coverage.unit > 0
        whole = self.count(stage, kind, chain[~is_partial], tail[~is_partial_tail], states)
        if kind in self._coverage.states[stage]:
            return whole
        ends = chain[is_partial] if kind in self._coverage.growing[stage] else tail[is_partial_tail]
        return whole + sum(self.count(stage, kind, ends[at : at + 1], ends[at : at + 1], 0) for at in range(len(ends)))
