"""What the cache keeps of kinds that do not grow, and for which hits.

    units      ·  ·  ▓  ▓  ▓  ▓  ▓  ·  ·        ▓ pages of windows that the cache keeps
    boundary            └──tail──┘◆             one place where a hit may end, with its tail and its states
    group         └─spares─┘ ◆  ◆               pages that a prompt left between boundaries, and states captured there

A page is dropped when no boundary and no group needs it any more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quire.cache.memory import StageMemory
from quire.prefix.coverage import Coverage, Kinds
from quire.prefix.nodes import NO_GROUP, Chain, Nodes


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Spares of one prompt that were kept at the same time."""

    nodes: Chain
    kind: int
    """Its class (`forecast.class_of`)."""
    used: float
    worth: float
    """Tokens saved per byte."""
    rank: float = 0.0


class Boundaries:
    """Places where a hit may end, and the tails and spares that the cache keeps for them."""

    def __init__(self, nodes: Nodes, coverage: Coverage, memories: list[StageMemory]) -> None:
        self.nodes, self.coverage, self.memories = nodes, coverage, memories
        self.tails: dict[int, Chain] = {}
        """By boundary: the nodes whose pages of kinds with a tail it needs."""
        self.groups: dict[int, Group] = {}
        self._groups_made = NO_GROUP

    def keep(self, row: int, chain: Chain) -> None:
        """Keeps a boundary at the chain's end, with pages of a row. The row's live set still includes them."""
        needed = sinks, first = self.coverage.needed_units(self.nodes.tokens.item(chain.item(-1)))
        if sinks:
            self.keep_pages(self.coverage.tails, row, chain[:sinks], 0)
        self.keep_pages(self.coverage.tails, row, chain[first:], first)
        self.mark(chain, needed)

    def mark(self, chain: Chain, needed: tuple[int, int] | None = None) -> None:
        """Marks a boundary at the chain's end, whose pages are all kept. `needed`: from `needed_units`, if known."""
        node = chain.item(-1)
        if node in self.tails:
            return
        sinks, first = needed or self.coverage.needed_units(self.nodes.tokens.item(node))
        tail = chain[first:] if not sinks else np.concatenate([chain[:sinks], chain[first:]])
        self.tails[node] = tail
        self.nodes.needed[tail] += 1
        self.nodes.is_boundary[node] = 1

    def keep_pages(self, kinds: Kinds, row: int, chain: Chain, first_unit: int) -> None:
        """Keeps the pages that a row holds of the chain's units, the first of which is `first_unit`."""
        for memory, own in zip(self.memories, kinds, strict=True):
            if own and len(chain):
                memory.keep(own, row, chain, first_unit, self.nodes.tokens.item(chain.item(-1)))

    def drop(self, node: int) -> None:
        """Removes the boundary at this node."""
        nodes, tail = self.nodes, self.tails.pop(node, None)
        if tail is None:
            return
        nodes.is_boundary[node] = 0
        nodes.needed[tail] -= 1
        if nodes.group[node] == NO_GROUP:
            self.forget_pages(np.array([node]), self.coverage.states)
        self._let_go(tail)

    def leave(self, bundle: Chain) -> None:
        """Nodes are about to be removed with all their pages: drops tail pages before them that only they needed."""
        nodes, begin = self.nodes, self.nodes.tokens[bundle[0]]
        for node in bundle[nodes.is_boundary[bundle].nonzero()[0]].tolist():
            tail = self.tails.pop(node)
            before = tail[nodes.tokens[tail] < begin]
            if len(before):
                nodes.needed[before] -= 1
                self._let_go(before)

    def _let_go(self, chain: Chain) -> None:
        """Drops tail pages that neither a boundary nor a group needs."""
        nodes = self.nodes
        unneeded = chain[(nodes.needed[chain] == 0) & (nodes.group[chain] == NO_GROUP)]
        if len(unneeded):
            self.forget_pages(unneeded, self.coverage.tails)

    def forget_pages(self, chain: Chain, kinds: Kinds) -> None:
        for memory, own in zip(self.memories, kinds, strict=True):
            memory.forget(chain, own)

    # ── spares ────────────────────────────────────────────────────────────

    def keep_spares(self, row: int, chain: Chain, first_unit: int, kind: int, *, used: float, worth: float) -> int:
        """Keeps pages that a row still holds from `first_unit` on, as a group. Returns its number, or NO_GROUP."""
        own = chain[first_unit:]
        own = own[self.nodes.group[own] == NO_GROUP]
        if not len(own):
            return NO_GROUP
        self.keep_pages(self.coverage.tails, row, chain[first_unit:], first_unit)
        self._groups_made += 1
        self.nodes.group[own] = self._groups_made
        self.groups[self._groups_made] = Group(own, kind, used, worth)
        return self._groups_made

    def members(self, number: int) -> Chain:
        """Nodes that still belong to a group: others were evicted, and their numbers may be in use again."""
        own = self.groups[number].nodes
        members: Chain = own[self.nodes.group[own] == number]
        return members

    def drop_group(self, number: int) -> Chain:
        """Drops the group's spares except those that boundaries need. Returns the group's nodes."""
        own = self.members(number)
        del self.groups[number]
        self.nodes.group[own] = NO_GROUP
        plain = own[self.nodes.is_boundary[own] == 0]
        if len(plain):
            self.forget_pages(plain, self.coverage.states)
        self._let_go(own)
        return own

    def clear(self) -> None:
        """All nodes were removed."""
        assert not len(self.nodes), "boundaries go with their nodes"
        self.tails.clear()
        self.groups.clear()
