"""Where forgetting begins: the ends of chains, the lowest-ranked first.

    rank   0.3    1.7    2.0    held: their pages were all in use when something had to go
    end     ●      ●      ●      ○

A chain's end is ranked whenever it is used. Old entries of the heap are not looked for: they are skipped when met.
"""

from __future__ import annotations

import heapq

from quire.cache.coverage import Coverage
from quire.cache.memory import StageMemory
from quire.cache.nodes import Chain, Nodes
from quire.cache.order import Order

FEW = 64
"""Entries beside twice the nodes that the heap may have before it is built anew."""


class Leaves:
    def __init__(self, nodes: Nodes, coverage: Coverage, memories: list[StageMemory], order: Order) -> None:
        self.nodes, self.coverage, self.memories, self.order = nodes, coverage, memories, order
        self._ranked: list[tuple[float, int]] = []
        """A heap of (rank, node)."""
        self._held: list[tuple[float, int]] = []
        """Leaves whose pages were all in use when something had to go."""
        self.was_given_back = False
        """A request has left since then."""
        self.paths: dict[int, Chain] = {}
        """The chains that end with some of the leaves, so that nobody walks them node by node."""

    def rank(self, chain: Chain) -> None:
        """Everything up to a chain's end was used now. Boundaries on the way have a worth of their own.

        What lies right behind the boundary before gives the proof: a boundary's own node is new with every turn.
        """
        nodes = self.nodes
        if nodes.key[chain[-1]] is None:
            return  # a checkpoint on the way had to push it out
        begin = tokens = 0
        for place in self._bundle_ends(chain):
            node, hits = chain.item(place), nodes.hits.item(chain.item(begin))
            worth = self.coverage.worth(nodes.tokens.item(node) - tokens)
            nodes.rank[chain[begin : place + 1]] = self.order.rank(nodes.key[node], hits, worth)
            begin, tokens = place + 1, nodes.tokens.item(node)
        leaf = chain.item(-1)
        if not nodes.children[leaf]:
            self.paths[leaf] = chain
            self.push(leaf)

    def _bundle_ends(self, chain: Chain) -> list[int]:
        """Places in a chain where a bundle ends: its boundaries, and its end."""
        places = self.nodes.is_boundary[chain[:-1]].nonzero()[0].tolist() if self.coverage.has_boundaries else []
        return [*places, len(chain) - 1]

    def push(self, node: int) -> None:
        """A node became a leaf, or has a new rank."""
        heapq.heappush(self._ranked, (self.nodes.rank.item(node), node))
        if len(self._ranked) > 2 * len(self.nodes) + FEW:
            leaves = self.nodes.leaves()
            self._held = []
            self._ranked = list(zip(self.nodes.rank[leaves].tolist(), leaves.tolist(), strict=True))
            heapq.heapify(self._ranked)

    def lowest(self, must: bool) -> int | None:
        """Takes the lowest-ranked leaf that gives a page back. If none does and it must be, the lowest of all."""
        found = self._pop_giving()
        if found is None and self._held and (must or self.was_given_back):
            self._try_again()
            found = self._pop_giving()
            if found is None and must:
                self._try_again()
                found = self._pop()
        return found

    def _pop_giving(self) -> int | None:
        """Those before it are set aside."""
        while (node := self._pop()) is not None:
            for memory in self.memories:
                if memory.gives_back(node):
                    return node
            self._held.append((self.nodes.rank.item(node), node))
        return None

    def _pop(self) -> int | None:
        nodes = self.nodes
        while self._ranked:
            rank, node = heapq.heappop(self._ranked)
            if nodes.key[node] is not None and nodes.rank[node] == rank and not nodes.children[node]:
                return node
        return None

    def _try_again(self) -> None:
        """Leaves that were all in use may have something to give by now."""
        self.was_given_back = False
        for leaf in self._held:
            heapq.heappush(self._ranked, leaf)
        self._held = []

    def forgot(self, leaf: int) -> Chain:
        """The chain that ends with a leaf which is about to go."""
        self.order.forgot(self.nodes.rank.item(leaf))
        return self.paths.pop(leaf) if leaf in self.paths else self.nodes.path(leaf)

    def clear(self) -> None:
        self._ranked, self._held = [], []
