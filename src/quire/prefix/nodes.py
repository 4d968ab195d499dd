"""The tree of prefixes as columns: a node per unit of tokens under its chained key, and ends of turns between units.

    key 0 ─▶ key 1 ─▶ key 2 ─▶ key 3         a node exists only if its parent does, because only leaves are removed
                        └───▶ end (20 tokens into unit 3)

Chains are added, found and removed in runs, never node by node: a run is what one call added, less what was removed
from its end. It is found by its first key; how many keys it shares with a prompt is bisected.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from quire.cache.memory import FIRST_NODES
from quire.core.search import greatest

Chain = npt.NDArray[np.int64]
"""Nodes by number, from a beginning on."""
NO_NODES: Chain = np.empty(0, dtype=np.int64)
NO_NODE = -1
"""In `parent`: the chain begins here."""
NO_GROUP = 0
NOTES = ("uses", "origin", "gain", "is_boundary", "needed", "group", "awaited", "leased", "lease_ends", "leased_tail")
"""uses         how often a request continued from the node's end; if every kind grows, from there or further on
origin       why its boundary is kept (`forecast.Origin`)
gain         tokens that a hit at its end saves, compared with one at the boundary before that others use too
is_boundary  1: it is a boundary: what a hit at its end needs of kinds that do not grow is kept for it
needed       boundaries that need what kinds with a tail keep here
group        the group of spares that it belongs to
awaited      queued requests that would continue from its end
leased       leases of prefixes that it is part of: it is not evicted
lease_ends   leases that end here: its boundary is not dropped
leased_tail  leases that need what kinds with a tail keep here"""
COLUMNS = ("run", "key", "parent", "children", "tokens", "used", "line", "rank", "is_there", "_notes")


def _note(place: int) -> property:
    return property(lambda nodes: nodes._notes[:, place])


class Nodes:
    """The tree of prefixes: columns of numbers, one place per node."""

    def __init__(self) -> None:
        self.room = FIRST_NODES
        self.count = 0
        self._runs: dict[bytes, tuple[Sequence[bytes], Chain]] = {}
        """By their first keys: all keys of a run, and their nodes."""
        self.run = np.empty(FIRST_NODES, dtype=object)
        """The first key of the run that a node belongs to."""
        self.key = np.empty(FIRST_NODES, dtype=object)
        self.parent = np.full(FIRST_NODES, NO_NODE, dtype=np.int64)
        self.children = np.zeros(FIRST_NODES, dtype=np.int64)
        self.tokens = np.zeros(FIRST_NODES, dtype=np.int64)
        """Where the node's last token ends, counted from the chain's beginning."""
        self.used = np.zeros(FIRST_NODES, dtype=np.float64)
        """When a request last continued from its end, or ended there; if every kind grows, there or further on."""
        self.line = np.zeros(FIRST_NODES, dtype=np.int64)
        """Length of the sequence of hits that led to it: how many turns a session has had before."""
        self.rank = np.zeros(FIRST_NODES, dtype=np.float64)
        """What keeping it is worth, when that was last computed: the lowest is evicted first."""
        self.is_there = np.zeros(FIRST_NODES, dtype=bool)
        self._notes = np.zeros((FIRST_NODES, len(NOTES)), dtype=np.int32)
        """The columns of NOTES in one array, so that removing a node clears all of them at once."""
        self._free = np.arange(FIRST_NODES - 1, -1, -1)
        """Numbers of nodes; the first `room - count` are free."""

    def notes(self, node: int) -> list[int]:
        """All columns of NOTES, of one node."""
        notes: list[int] = self._notes[node].tolist()
        return notes

    uses, origin, gain, is_boundary, needed, group, awaited, leased, lease_ends, leased_tail = map(
        _note, range(len(NOTES))
    )

    def __len__(self) -> int:
        return self.count

    def items(self) -> Iterator[tuple[bytes, int]]:
        for keys, nodes in self._runs.values():
            yield from zip(keys, nodes.tolist(), strict=True)

    def find(self, key: bytes) -> int | None:
        """The node of a key that begins a run: ends of turns do."""
        return self._runs[key][1].item(0) if key in self._runs else None

    def depth(self, keys: Sequence[bytes]) -> int:
        """How many keys from the first on have nodes."""
        return sum(map(len, self._along(keys, 0, len(keys))))

    def follow(self, keys: Sequence[bytes], most: int, known: Chain = NO_NODES) -> Chain:
        """Nodes of the first keys, at most `most`, as far as there are any. `known`: an earlier result for them."""
        begin = 0
        if self._are(known, keys):
            if not self.children[known[-1]]:
                return known[:most]
            begin = min(self._run_begin(known), most)
        chains = [known[:begin], *self._along(keys, begin, most)]
        return chains[1] if not begin and len(chains) == 2 else np.concatenate(chains)

    def _along(self, keys: Sequence[bytes], begin: int, most: int) -> Iterator[Chain]:
        """Runs, or beginnings of runs, whose keys are equal to the keys from `begin` on."""
        while begin < most and keys[begin] in self._runs:
            own, nodes = self._runs[keys[begin]]
            size = greatest(1, min(len(own), most - begin), partial(_are_alike, own, keys, begin))
            yield nodes[:size]
            begin += size

    def _run_begin(self, chain: Chain) -> int:
        """Where the run begins that the chain ends in; the run may continue after the chain's end."""
        _, nodes = self._runs[self.run[chain[-1]]]
        return len(chain) - 1 - int((nodes == chain[-1]).nonzero()[0][0])

    def _are(self, known: Chain, keys: Sequence[bytes]) -> bool:
        """Whether these are still the nodes of the first keys: the last by its key, the others by their children."""
        if not len(known) or self.key[known[-1]] != keys[len(known) - 1]:
            return False
        return not np.count_nonzero(self.parent[known[1:]] != known[:-1])

    def add(self, keys: Sequence[bytes], parent: int, ends: Chain, now: float = 0.0, line: int = 0) -> Chain:
        """Adds a chain of new nodes under `parent`, whose tokens end at `ends`. The caller has made room (`widen`)."""
        free = self.room - self.count
        nodes = self._free[free - len(keys) : free].copy()
        self.count += len(keys)
        self._runs[keys[0]] = keys, nodes
        if len(keys) > 1:
            self.key[nodes], self.run[nodes] = keys, keys[0]
            self.parent[nodes[1:]], self.children[nodes], self.tokens[nodes] = nodes[:-1], 1, ends
        else:
            node = nodes.item(0)
            self.key[node] = self.run[node] = keys[0]
            self.tokens[node] = ends[0]
        self.used[nodes], self.line[nodes], self.is_there[nodes] = now, line, True
        self.parent[nodes.item(0)], self.children[nodes.item(-1)] = parent, 0
        if parent != NO_NODE:
            self.children[parent] += 1
        return nodes

    def is_short_of(self, count: int) -> bool:
        return self.room - self.count < count

    def widen(self) -> None:
        """Doubles the capacity."""
        more, self.room = self.room, 2 * self.room
        self._free = np.concatenate([np.arange(self.room - 1, more - 1, -1), self._free])
        for name in COLUMNS:
            column = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.zeros_like(column)]))

    def remove(self, bundle: Chain) -> int:
        """Removes a sequence of nodes that ends with a leaf; nothing else branches off it. Returns its parent."""
        assert not self.children[bundle[-1]], "only leaves are forgotten"
        free = self.room - self.count
        self.count -= len(bundle)
        self._shorten_runs(bundle)
        self.key[bundle] = None
        self.is_there[bundle] = False
        self._notes[bundle] = 0
        self._free[free : free + len(bundle)] = bundle
        parent = self.parent.item(bundle[0])
        if parent != NO_NODE:
            self.children[parent] -= 1
        return parent

    def _shorten_runs(self, bundle: Chain) -> None:
        left = len(bundle)
        while left > 0:
            first = self.run[bundle[left - 1]]
            keys, nodes = self._runs.pop(first)
            if len(nodes) > left:
                self._runs[first] = keys[:-left], nodes[:-left]
            left -= len(nodes)

    def path(self, node: int) -> Chain:
        """The chain that ends with a node."""
        path = [node]
        while (node := self.parent.item(node)) != NO_NODE:
            path.append(node)
        return np.array(path[::-1], dtype=np.int64)

    def leaves(self) -> Chain:
        return np.asarray((self.is_there & (self.children == 0)).nonzero()[0], dtype=np.int64)


def _are_alike(some: Sequence[bytes], others: Sequence[bytes], begin: int, count: int) -> bool:
    return some[count - 1] == others[begin + count - 1]
