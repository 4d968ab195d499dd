"""What is evicted next: the end of a chain, an inner boundary or a group of spares, whichever is worth least per byte.

    end of a chain      its last tokens, with the boundary there              gain ÷ (bytes of these tokens + boundary)
    inner boundary      tail and states of a place after which chains go on   gain ÷ bytes of the boundary
    group of spares     pages and states that a prompt left between them      gain ÷ their bytes

Worth is multiplied by the forecast for the class and the age (`forecast.py`). What queued requests are about to use is
evicted after everything else. Outdated entries stay in the heap and are skipped when they are popped.
"""

from __future__ import annotations

import heapq
from dataclasses import replace
from itertools import islice

import numpy as np

from quire.cache.memory import StageMemory
from quire.prefix.boundaries import Boundaries
from quire.prefix.coverage import Coverage
from quire.prefix.forecast import Forecast, Origin, ReuseTimes, class_of, class_of_one
from quire.prefix.ghosts import Ghost, Ghosts
from quire.prefix.nodes import Chain, Nodes

FEW = 64
"""Entries beyond twice the nodes that the heap may have before it is rebuilt."""
FRESH_SHARE = 0.2
"""Values are recomputed after this much traffic, as a fraction of the cached tokens."""
Entry = tuple[float, int]
"""(rank, node); a group of spares is its number, negated."""


class Eviction:
    """Ranks everything that can be evicted, and chooses what is evicted next."""

    def __init__(
        self, nodes: Nodes, boundaries: Boundaries, coverage: Coverage, memories: list[StageMemory], forecast: Forecast
    ) -> None:
        self.nodes, self.boundaries, self.coverage, self.memories = nodes, boundaries, coverage, memories
        self.forecast = forecast
        self.ghosts = Ghosts(self._gave_up)
        self.now = 0.0
        """Tokens of traffic so far."""
        self._ranked: list[Entry] = []
        """A heap."""
        self._held: list[Entry] = []
        """Entries whose pages were all in use when an eviction considered them."""
        self._awaited: list[Entry] = []
        """Entries that queued requests are about to use."""
        self._computed = 0.0
        """The time when all values were computed last."""
        self.was_given_back = False
        """A request has freed its pages since the last retry of `_held`."""
        self.paths: dict[int, Chain] = {}
        """The chains of some leaves, so that they need not be walked node by node."""
        self.last_rank = 0.0
        """The rank of what was evicted last."""

    def _gave_up(self, ghost: Ghost) -> None:
        self.forecast.note_end(ghost.kind, self.now - ghost.used)

    def tick(self) -> float:
        """A time stamp for a use now, later than all before it."""
        self.now += 1
        return self.now

    # ── values ────────────────────────────────────────────────────────────

    def push(self, node: int) -> None:
        """A node became the end of a chain or a boundary, or was used."""
        if self.nodes.awaited[node]:
            self._awaited.append((self._rank(node), node))
            return
        heapq.heappush(self._ranked, (self._rank(node), node))
        if len(self._ranked) > 2 * len(self.nodes) + len(self.boundaries.groups) + FEW:
            self.compute()

    def push_group(self, number: int) -> None:
        heapq.heappush(self._ranked, (self._rank_group(number), -number))

    def _rank_group(self, number: int) -> float:
        group = self.boundaries.groups[number]
        rank = self.forecast.value(group.kind, group.used, self.now, group.worth)
        self.boundaries.groups[number] = replace(group, rank=rank)
        return rank

    def _rank(self, node: int) -> float:
        nodes = self.nodes
        uses, origin, gain, is_boundary, *_ = nodes.notes(node)
        rank = 0.0
        if is_boundary or not self.coverage.has_boundaries:
            worth = self.coverage.worth(gain, not nodes.children[node])
            kind = class_of_one(origin, nodes.line.item(node), uses)
            rank = self.forecast.value(kind, nodes.used.item(node), self.now, worth)
        nodes.rank[node] = rank
        return rank

    def promote(self, chain: Chain) -> None:
        """A hit ends, or will end, where there are spares: they become a boundary."""
        if chain.item(-1) not in self.boundaries.tails:
            self.boundaries.mark(chain)
            self.describe(chain, Origin.JUNCTION, 0)

    def describe(self, chain: Chain, origin: Origin, line: int) -> None:
        """Sets what a boundary at the chain's end is worth, and ranks it."""
        nodes, node = self.nodes, chain.item(-1)
        nodes.origin[node] = origin
        nodes.used[node], nodes.line[node] = self.tick(), line
        marked = chain[nodes.is_boundary[chain].nonzero()[0]].tolist()
        shared = (one for one in reversed(marked) if one != node and (nodes.children[one] > 1 or nodes.uses[one] > 1))
        nodes.gain[node] = nodes.tokens.item(node) - sum(nodes.tokens.item(one) for one in islice(shared, 1))
        ghost = self.ghosts.at_end(nodes.key[node])
        nodes.uses[node] = max(nodes.uses.item(node), ghost.uses if ghost is not None else 0)
        self.push(node)

    def class_of(self, node: int) -> int:
        uses, origin, *_ = self.nodes.notes(node)
        return class_of_one(origin, self.nodes.line.item(node), uses)

    def compute(self) -> None:
        """Recomputes all values and rebuilds the heap."""
        nodes, forecast = self.nodes, self.forecast
        if isinstance(forecast, ReuseTimes) and forecast.is_stale:
            forecast.learn(*self._watched())
        self._computed = self.now
        ends = nodes.leaves()
        if self.boundaries.tails:
            ends = np.union1d(ends, np.fromiter(self.boundaries.tails, dtype=np.int64))
        worths = self.coverage.worths(nodes.gain[ends], nodes.children[ends] == 0)
        nodes.rank[ends] = forecast.values(self._classes(ends), nodes.used[ends], self.now, worths)
        if self.coverage.has_boundaries:
            nodes.rank[ends] *= nodes.is_boundary[ends]
        is_awaited = nodes.awaited[ends] > 0
        entries = list(zip(nodes.rank[ends].tolist(), ends.tolist(), strict=True))
        self._awaited = [entry for entry, waits in zip(entries, is_awaited.tolist(), strict=True) if waits]
        self._ranked = [entry for entry, waits in zip(entries, is_awaited.tolist(), strict=True) if not waits]
        self._ranked += [(self._rank_group(number), -number) for number in list(self.boundaries.groups)]
        self._held = []
        heapq.heapify(self._ranked)

    def _classes(self, chain: Chain) -> Chain:
        return class_of(self.nodes.origin[chain], self.nodes.line[chain], self.nodes.uses[chain])

    def _watched(self) -> tuple[Chain, np.ndarray[tuple[int], np.dtype[np.float64]]]:
        """Classes and ages of all prefixes that may be used again, cached or evicted."""
        nodes = self.nodes
        if self.coverage.has_boundaries:
            ends = np.fromiter(self.boundaries.tails, dtype=np.int64)
        else:
            there = nodes.is_there.nonzero()[0]
            before = nodes.parent[there]
            is_inner = (before >= 0) & (nodes.used[before] != nodes.used[there])
            ends = np.union1d(nodes.leaves(), before[is_inner])
        others = [(one.kind, one.used) for one in self.ghosts.live()]
        others += [(one.kind, one.used) for one in self.boundaries.groups.values()]
        classes, used = zip(*others, strict=True) if others else ((), ())
        every = np.concatenate([self._classes(ends), np.array(classes, dtype=np.int64)])
        return every, np.maximum(0.0, self.now - np.concatenate([nodes.used[ends], np.array(used, dtype=np.float64)]))

    # ── choosing ──────────────────────────────────────────────────────────

    def lowest(self, must: bool, even_awaited: bool) -> int | None:
        """Pops the entry of least worth that would free a page: a node, or a group's number negated. If there is none
        and `must`, the lowest of all. Awaited entries only with `even_awaited`, and last."""
        if self.forecast.learns and self.now - self._computed > FRESH_SHARE * len(self.nodes) * self.coverage.unit:
            self.compute()
        found = self._pop_giving(False)
        if found is None and self._held and (must or self.was_given_back):
            self._try_again()
            found = self._pop_giving(False)
        if found is None and even_awaited and self._awaited:
            self._ranked, self._awaited = self._awaited, []
            heapq.heapify(self._ranked)
            found = self._pop_giving(True)
        if found is None and must:
            self._try_again()
            found = self._pop(even_awaited)
        if found is not None:
            self.last_rank = self.boundaries.groups[-found].rank if found < 0 else self.nodes.rank.item(found)
        return found

    def _pop_giving(self, even_awaited: bool) -> int | None:
        """The lowest entry that would free a page; lower ones are moved to `_held`."""
        while (found := self._pop(even_awaited)) is not None:
            if found < 0 or self._gives_back(found):
                return found
            self._held.append((self.nodes.rank.item(found), found))
        return None

    def _gives_back(self, node: int) -> bool:
        """Whether evicting a node frees a page; always True for an inner boundary, whose pages are not checked."""
        if self.nodes.children[node]:
            return True
        return any(memory.gives_back(node) for memory in self.memories)

    def _pop(self, even_awaited: bool) -> int | None:
        while self._ranked:
            rank, found = entry = heapq.heappop(self._ranked)
            if not self._is_current(rank, found):
                continue
            if found >= 0 and self.nodes.awaited[found] and not even_awaited:
                self._awaited.append(entry)
                continue
            return found
        return None

    def _is_current(self, rank: float, found: int) -> bool:
        if found < 0:
            return -found in self.boundaries.groups and self.boundaries.groups[-found].rank == rank
        nodes = self.nodes
        if nodes.children[found]:
            is_candidate = nodes.is_boundary[found] and not nodes.lease_ends[found]
        else:
            is_candidate = nodes.is_there[found] and not nodes.leased[found]
        return bool(is_candidate and nodes.rank[found] == rank)

    def _try_again(self) -> None:
        """Ranks `_held` again: their pages may no longer be in use."""
        self.was_given_back = False
        for entry in self._held:
            heapq.heappush(self._ranked, entry)
        self._held = []

    def path(self, leaf: int) -> Chain:
        """The chain of a leaf that is about to be evicted."""
        return self.paths.pop(leaf) if leaf in self.paths else self.nodes.path(leaf)

    def remember(
        self, keys: list[bytes], kind: int, used: float, uses: int, line: int, end: bytes, arrivals: int
    ) -> None:
        """Remembers an evicted prefix as a ghost, if the forecast learns."""
        if self.forecast.learns and keys:
            self.ghosts.add(keys, Ghost(kind, used, uses, line, end, arrivals))
            self.ghosts.limit(len(self.nodes))

    def clear(self) -> None:
        self._ranked, self._held, self._awaited = [], [], []
        self.paths.clear()
