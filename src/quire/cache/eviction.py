"""What is evicted next: ends of chains, boundaries on their way and spares, whatever is worth least per byte.

    end of a chain      its last tokens, with the boundary there              gain ÷ (bytes of these tokens + boundary)
    boundary on a way   tail and states of a place that chains go on behind   gain ÷ bytes of the boundary
    group of spares     pages and states that a prompt left on its way        gain ÷ their bytes

Worth is multiplied by what `reuse_times` forecasts for the class and the age. What queued requests are about to use
goes after everything else. Old entries of the heap are not looked for: they are skipped when met.
"""

from __future__ import annotations

import heapq
from dataclasses import replace

import numpy as np

from quire.cache.boundaries import Boundaries
from quire.cache.coverage import Coverage
from quire.cache.ghosts import Ghost, Ghosts
from quire.cache.memory import StageMemory
from quire.cache.nodes import Chain, Nodes
from quire.cache.reuse_times import Forecast, ReuseTimes, class_of, class_of_one

FEW = 64
"""Entries beyond twice the nodes that the heap may have before it is built anew."""
FRESH_SHARE = 0.2
"""Values are computed anew after so much traffic, as a share of the cached tokens."""
Entry = tuple[float, int]
"""Rank and node; a group of spares has its number below 0."""


class Eviction:
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
        """Those whose pages were all in use when something had to go."""
        self._awaited: list[Entry] = []
        """Those that queued requests are about to use."""
        self._computed = 0.0
        """When all values were computed last."""
        self.was_given_back = False
        """A request has left since something was found to be held."""
        self.paths: dict[int, Chain] = {}
        """The chains that end with some of the leaves, so that they need not be walked node by node."""
        self.last_rank = 0.0
        """Of what was evicted last."""

    def _gave_up(self, ghost: Ghost) -> None:
        self.forecast.note_end(ghost.kind, self.now - ghost.used)

    def tick(self) -> float:
        """The time of something that is used now, later than all before it."""
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

    def class_of(self, node: int) -> int:
        uses, origin, *_ = self.nodes.notes(node)
        return class_of_one(origin, self.nodes.line.item(node), uses)

    def compute(self) -> None:
        """All values anew, and the heap with them."""
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
        """Classes and ages of all that may be used again: cached or evicted."""
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
        """Takes what is worth least among all that gives a page back: a node, or a group with its number below 0. If
        none does and it must be, the lowest of all; what is awaited only if that may go too, and last."""
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
        """Those before it are set aside."""
        while (found := self._pop(even_awaited)) is not None:
            if found < 0 or self._gives_back(found):
                return found
            self._held.append((self.nodes.rank.item(found), found))
        return None

    def _gives_back(self, node: int) -> bool:
        """A boundary on the way always counts as giving: what it needs alone is not looked for."""
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
        is_candidate = nodes.is_there[found] and (not nodes.children[found] or nodes.is_boundary[found])
        return bool(is_candidate and nodes.rank[found] == rank)

    def _try_again(self) -> None:
        """Those that were all in use may have something to give by now."""
        self.was_given_back = False
        for entry in self._held:
            heapq.heappush(self._ranked, entry)
        self._held = []

    def path(self, leaf: int) -> Chain:
        """The chain that ends with a leaf which is about to go."""
        return self.paths.pop(leaf) if leaf in self.paths else self.nodes.path(leaf)

    def remember(
        self, keys: list[bytes], kind: int, used: float, uses: int, line: int, end: bytes, arrivals: int
    ) -> None:
        """Something was evicted."""
        if self.forecast.learns and keys:
            self.ghosts.add(keys, Ghost(kind, used, uses, line, end, arrivals))
            self.ghosts.limit(len(self.nodes))

    def clear(self) -> None:
        self._ranked, self._held, self._awaited = [], [], []
        self.paths.clear()
