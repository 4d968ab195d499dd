"""The tree of prefixes as columns: a node per unit of tokens under its chained key, and ends of turns between units.

    key 0 ─▶ key 1 ─▶ key 2 ─▶ key 3         a node exists only if its parent does, for only leaves are forgotten
                        └───▶ end (20 tokens into unit 3)

Chains are added and read in one go, never node by node.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from quire.core.search import greatest

Chain = npt.NDArray[np.int64]
FIRST_NODES = 64
"""Nodes that there is room for at first; it doubles."""
NO_NODES: Chain = np.empty(0, dtype=np.int64)
NO_NODE = -1
"""In `parent`: the chain begins here."""


def for_each(action: Callable[..., object], *arguments: Iterable[object]) -> None:
    """Does it at the speed of map, for its effects alone."""
    deque(map(action, *arguments), maxlen=0)


class Nodes:
    def __init__(self) -> None:
        self.room = FIRST_NODES
        self.node_of: dict[bytes, int] = {}
        self.key = np.empty(FIRST_NODES, dtype=object)
        self.parent = np.full(FIRST_NODES, NO_NODE, dtype=np.int64)
        self.children = np.zeros(FIRST_NODES, dtype=np.int64)
        self.tokens = np.zeros(FIRST_NODES, dtype=np.int64)
        """Where the node's last token ends, counted from the chain's beginning."""
        self.hits = np.zeros(FIRST_NODES, dtype=np.int64)
        self.rank = np.zeros(FIRST_NODES, dtype=np.float64)
        """Lower goes first when something must be forgotten."""
        self.is_boundary = np.zeros(FIRST_NODES, dtype=bool)
        """Kinds that do not grow have kept on purpose what a hit at the node's end needs."""
        self._free = np.arange(FIRST_NODES - 1, -1, -1)
        """The first so many are free: those that no key has."""

    def __len__(self) -> int:
        return len(self.node_of)

    def depth(self, keys: Sequence[bytes]) -> int:
        """How many keys from the first on have nodes."""
        return greatest(0, len(keys), lambda count: keys[count - 1] in self.node_of)

    def chain(self, keys: Sequence[bytes]) -> Chain:
        """The nodes of keys that all have one."""
        return np.array(list(map(self.node_of.__getitem__, keys)), dtype=np.int64)

    def follow(self, keys: Sequence[bytes], most: int, known: Chain) -> Chain:
        """Nodes of the first keys, `most` of them or as many as have any. `known`: what they were some time ago."""
        begin = len(known) if self._are(known, keys) else 0
        depth = greatest(begin, most, lambda count: keys[count - 1] in self.node_of)
        found = self.chain(keys[begin:depth])
        return np.concatenate([known, found]) if begin and len(found) else known if begin else found

    def _are(self, known: Chain, keys: Sequence[bytes]) -> bool:
        """Whether these are still the nodes of the first keys: the last by its key, the others by their children."""
        if not len(known) or self.key[known[-1]] != keys[len(known) - 1]:
            return False
        return bool((self.parent[known[1:]] == known[:-1]).all())

    def add(self, keys: Sequence[bytes], parent: int, ends: Chain) -> Chain:
        """A chain of new nodes behind `parent`, whose tokens end at `ends`. There is room: see `widen`."""
        free = self.room - len(self.node_of)
        nodes = self._free[free - len(keys) : free].copy()
        self.node_of.update(zip(keys, nodes.tolist(), strict=True))
        self.key[nodes] = keys
        self.parent[nodes[0]], self.parent[nodes[1:]] = parent, nodes[:-1]
        self.children[nodes[:-1]], self.children[nodes[-1]] = 1, 0
        if parent != NO_NODE:
            self.children[parent] += 1
        self.tokens[nodes], self.hits[nodes], self.rank[nodes], self.is_boundary[nodes] = ends, 1, 0.0, False
        return nodes

    def is_short_of(self, count: int) -> bool:
        return self.room - len(self.node_of) < count

    def widen(self) -> None:
        """Room for twice as many."""
        more, self.room = self.room, 2 * self.room
        self._free = np.concatenate([np.arange(self.room - 1, more - 1, -1), self._free])
        for name in ("parent", "children", "tokens", "hits", "rank", "is_boundary", "key"):
            column = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.zeros_like(column)]))

    def remove(self, bundle: Chain) -> int:
        """Forgets a run of nodes that ends with a leaf; nothing else branches off it. Returns what it hung on."""
        assert not self.children[bundle[-1]], "only leaves are forgotten"
        free = self.room - len(self.node_of)
        for_each(self.node_of.pop, self.key[bundle].tolist())
        self.key[bundle] = None
        self._free[free : free + len(bundle)] = bundle
        parent = self.parent.item(bundle[0])
        if parent != NO_NODE:
            self.children[parent] -= 1
        return parent

    def path(self, node: int) -> Chain:
        """The chain that ends with a node."""
        path = [node]
        while (node := self.parent.item(node)) != NO_NODE:
            path.append(node)
        return np.array(path[::-1], dtype=np.int64)

    def leaves(self) -> Chain:
        numbers = np.fromiter(self.node_of.values(), dtype=np.int64, count=len(self.node_of))
        return np.asarray(numbers[self.children[numbers] == 0], dtype=np.int64)
