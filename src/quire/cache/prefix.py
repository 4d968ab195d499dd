"""Prefixes that were computed before, and the pages that still hold them.

    key 0 ─▶ key 1 ─▶ key 2 ─▶ key 3 ─▶ end         a node per unit of tokens, and one where a turn ended between units
      │        │        │        │       │
    full     full     full     full    full         kinds that grow keep their pages at every node
                      window   window  window       others at boundaries only: where a prompt ends, where prompts part
                        ◆                ◆          (◆ a state's checkpoint), where a turn ended

A hit ends at the greatest boundary that every kind can prove. What is forgotten goes in bundles, from a chain's end to
the boundary before it, so that no kind strands another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from quire.cache.coverage import Coverage, Kinds
from quire.cache.keys import end_key
from quire.cache.leaves import Leaves
from quire.cache.memory import StageMemory
from quire.cache.nodes import NO_NODE, NO_NODES, Chain, Nodes
from quire.cache.order import ByValue, Order
from quire.core.request import Tokens
from quire.core.units import ceil_div
from quire.kinds import Counts
from quire.plan.plan import Plan

BOUNDARIES_KEPT = 2
"""Of a chain that goes on: where its last prompt and its last turn ended; older ones only where chains part."""


USED_ONCE = 2
"""Hits of a node that was made and then found by one request."""


class Miss(str, Enum):
    """Why a prompt found nothing."""

    NO_OVERLAP = "no_overlap"
    BELOW_UNIT = "below_unit"
    TAIL_EVICTED = "tail_evicted"
    CHECKPOINT_ABSENT = "checkpoint_absent"
    SCOPE = "scope"
    DISABLED = "disabled"
    PROMPT_LOGPROBS = "prompt_logprobs"


@dataclass(frozen=True, slots=True, eq=False)
class Hit:
    """A prefix of `tokens` tokens that can be adopted, along `chain`; 0 tokens: a miss, and why."""

    tokens: int
    chain: Chain
    """Nodes of whole units, then that of an end between units if the hit is there."""
    overlap: int = 0
    """Units that were computed before, whether or not a hit can end there."""
    miss: Miss | None = None


def _behind(chain: Chain, node: int) -> Chain:
    return np.concatenate((chain, (node,)))


def missed(miss: Miss, overlap: int = 0) -> Hit:
    return Hit(0, np.empty(0, dtype=np.int64), overlap, miss)


class PrefixIndex:
    def __init__(self, plan: Plan, memories: list[StageMemory], order: Order | None = None) -> None:
        self.memories = memories
        self.coverage = Coverage(plan, memories)
        self.disabled, self.unit = self.coverage.disabled, self.coverage.unit
        self.nodes = Nodes()
        self.leaves = Leaves(self.nodes, self.coverage, memories, order or ByValue())
        self.ends: dict[bytes, list[int]] = {}
        """Ends of turns between units, by the key of the unit before (or the root)."""
        self._before: dict[int, bytes] = {}

    # ── looking up ────────────────────────────────────────────────────────

    def find(self, keys: Sequence[bytes], root: bytes, tokens: Tokens, most_tokens: int | None = None) -> Hit:
        """The greatest boundary that every kind can prove, before the last of `tokens`. Changes nothing."""
        if self.disabled:
            return missed(Miss.DISABLED)
        limit = len(tokens) - 1 if most_tokens is None else most_tokens
        most = limit // self.unit
        chain = self.nodes.follow(keys, most)
        depth = units = len(chain)
        if self.coverage.has_boundaries and (depth or root in self.ends):
            usable = self.coverage.usable(chain, self.nodes.tokens[chain]).nonzero()[0] if depth else NO_NODES
            units = int(usable[-1]) + 1 if len(usable) else 0
            end = self._find_end(keys, root, tokens[:limit], units, chain)
            if end is not None:
                stop = int(self.nodes.tokens[end])
                return Hit(stop, _behind(chain[: stop // self.unit], end), depth)
        if units:
            return Hit(units * self.unit, chain[:units], depth)
        return missed(self._why(most, depth), depth)

    def _why(self, most: int, depth: int) -> Miss:
        if depth:
            return Miss.CHECKPOINT_ABSENT if self.coverage.has_states else Miss.TAIL_EVICTED
        return Miss.NO_OVERLAP if most else Miss.BELOW_UNIT

    def _find_end(self, keys: Sequence[bytes], root: bytes, tokens: Tokens, units: int, chain: Chain) -> int | None:
        """The deepest end of a turn between units that lies behind `units` units, if its tokens are these."""
        for unit in range(len(chain), units - 1, -1) if self.ends else ():
            before = keys[unit - 1] if unit else root
            for end in sorted(self.ends.get(before, ()), key=lambda node: -int(self.nodes.tokens[node])):
                stop = int(self.nodes.tokens[end])
                is_it = stop <= len(tokens) and self.nodes.key[end] == end_key(before, tokens[unit * self.unit : stop])
                if is_it and self._is_usable(_behind(chain[:unit], end)):
                    return end
        return None

    def _is_usable(self, chain: Chain) -> bool:
        return bool(self.coverage.usable(chain, self.nodes.tokens[chain])[-1])

    def touch(self, chain: Chain) -> None:
        """A hit ended here: everything that led to it has proved its worth once more."""
        self.nodes.hits[chain] += 1
        self.leaves.rank(chain)

    # ── remembering ───────────────────────────────────────────────────────

    def remember(self, row: int, keys: Sequence[bytes], units: int, known: Chain = NO_NODES) -> Chain:
        """Keeps what a row holds of its first `units` units, for the kinds that grow; returns their nodes.

        `known`: what this returned for the row before. Until `rank` is told of them, new nodes are not forgotten.
        """
        chain = self.nodes.follow(keys, units, known)
        depth = len(chain)
        if depth < units:
            ends = self.unit * np.arange(depth + 1, units + 1)
            new = self._add(keys[depth:units], int(chain[-1]) if depth else NO_NODE, ends)
            for memory, kinds in zip(self.memories, self.coverage.growing, strict=True):
                memory.keep_new(kinds, row, new, depth)
            chain = np.concatenate([chain, new]) if depth else new
        return chain

    def keep_boundary(self, row: int, chain: Chain) -> None:
        """Keeps what kinds with a tail need for a hit at the chain's end. The row's live set has not passed it."""
        sinks, first = self.coverage.needed_units(self.nodes.tokens.item(chain.item(-1)))
        if sinks:
            self._keep(self.coverage.tails, row, chain[:sinks], 0)
        self._keep(self.coverage.tails, row, chain[first:], first)
        self.nodes.is_boundary[chain[-1]] = True

    def keep_end(
        self, row: int, keys: Sequence[bytes], units: int, root: bytes, behind: Tokens, came_from: bytes, known: Chain
    ) -> Chain:
        """A turn ended with some tokens behind so many units: the row's pages stay where they are, its states too.
        Returns its chain.

        `came_from`: the end that it went on from, of no more use unless others went on from there as well.
        """
        chain = self.remember(row, keys, units, known)
        if self.coverage.has_boundaries:
            chain = self._keep_turn(row, keys, root, behind, came_from, chain)
        if len(chain):
            self.leaves.rank(chain)
        return chain

    def _keep_turn(
        self, row: int, keys: Sequence[bytes], root: bytes, behind: Tokens, came_from: bytes, chain: Chain
    ) -> Chain:
        """A boundary where the turn ended, wherever that is; returns its chain."""
        units = len(chain)
        if len(behind):
            chain = _behind(chain, self._end_node(keys[units - 1] if units else root, chain, behind))
            self._keep(self.coverage.growing, row, chain[-1:], units)
        self._keep(self.coverage.states, row, chain[-1:], 0)
        self.keep_boundary(row, chain)
        old = self.nodes.find(came_from)
        if old is not None and old != chain[-1] and self.nodes.hits[old] <= USED_ONCE:
            self._forget(np.array([old]))
        self._let_go_before(chain)
        return chain

    def _end_node(self, before: bytes, chain: Chain, behind: Tokens) -> int:
        key = end_key(before, behind)
        node = self.nodes.find(key)
        if node is None:
            end = len(chain) * self.unit + len(behind)
            node = self._add([key], chain.item(-1) if len(chain) else NO_NODE, np.array([end])).item(0)
            self.ends.setdefault(before, []).append(node)
            self._before[node] = before
        return node

    def checkpoint(self, row: int, chain: Chain) -> list[tuple[int, int, Chain, Chain]]:
        """Copies a row's states to pages of the cache, for hits at the chain's end. The caller has made room."""
        copies, node = [], int(chain[-1])
        for stage, (memory, kinds) in enumerate(zip(self.memories, self.coverage.states, strict=True)):
            lacking = [kind for kind in kinds if not memory.kept[kind].present[node, 0]]
            copies += [(stage, kind, *memory.copy_state(kind, row, node)) for kind in lacking]
        return copies

    def lost(self, node: int) -> None:
        """A row took over pages without which no hit can end here."""
        self.nodes.is_boundary[node] = False
        if node in self._before:
            self._forget(np.array([node]))

    def _let_go_before(self, chain: Chain) -> None:
        """A chain that went on keeps its newest boundaries and those where others branch off."""
        nodes = self.nodes
        marked = nodes.is_boundary[chain].nonzero()[0]
        if len(marked) <= BOUNDARIES_KEPT:
            return
        is_kept = (nodes.children[chain[marked]] > 1) | (marked >= marked[-BOUNDARIES_KEPT])
        kept, old = marked[is_kept], marked[~is_kept]
        if not len(old):
            return
        nodes.is_boundary[chain[old]] = False
        self._forget_pages(chain[old], self.coverage.states)
        ends = [end for key in nodes.key[chain] for end in self.ends.get(key, ())]
        boundaries = nodes.tokens[[*chain[kept], *ends]].tolist()
        needed = [self.coverage.needed_units(tokens) for tokens in boundaries]
        unneeded = np.ones(len(chain), dtype=bool)
        for (sinks, first), tokens in zip(needed, boundaries, strict=True):
            unneeded[:sinks] = unneeded[first : ceil_div(tokens, self.unit)] = False
        self._forget_pages(chain[unneeded], self.coverage.tails)

    def _add(self, keys: Sequence[bytes], parent: int, ends: Counts) -> Chain:
        while self.nodes.is_short_of(len(keys)):
            self.nodes.widen()
            for memory in self.memories:
                memory.widen()
        self.leaves.paths.pop(parent, None)
        return self.nodes.add(keys, parent, ends)

    def _keep(self, kinds: Kinds, row: int, chain: Chain, first_unit: int) -> None:
        """What a row holds of the chain's units, the first of which is `first_unit`."""
        for memory, own in zip(self.memories, kinds, strict=True):
            if own and len(chain):
                memory.keep(own, row, chain, first_unit, self.nodes.tokens.item(chain.item(-1)))

    # ── forgetting ────────────────────────────────────────────────────────

    def evict(self, size_bytes: float, must: bool) -> int:
        """Forgets the lowest-ranked ends of chains that give pages back, about so many bytes and
        more only to reach a boundary. Returns the tokens forgotten, 0: nothing was.

        If none gives a page back and it must be, the lowest goes all the same: behind it lie nodes whose pages may.
        """
        bundles: list[Chain] = []
        tokens, given = 0, 0.0
        while (given < size_bytes or not bundles) and (leaf := self.leaves.lowest(must and not bundles)) is not None:
            bundle, forgotten = self._cut_off(leaf, size_bytes - given)
            bundles.append(bundle)
            tokens += forgotten
            given += self.coverage.bundle_bytes(forgotten)
        if bundles:
            self._forget_pages(bundles[0] if len(bundles) == 1 else np.concatenate(bundles), self.coverage.kinds)
        return tokens

    def _cut_off(self, leaf: int, size_bytes: float) -> tuple[Chain, int]:
        """Takes nodes out, from a leaf upwards, as far as they are of one bundle; how many tokens it had."""
        nodes = self.nodes
        chain = self.leaves.forgot(leaf)
        begin = self._bundle_begin(chain, size_bytes)
        self._remove(chain[begin:])
        before = chain.item(begin - 1) if begin else NO_NODE
        if begin and not nodes.children[before]:
            self.leaves.paths[before] = chain[:begin]
        return chain[begin:], nodes.tokens.item(leaf) - (nodes.tokens.item(before) if begin else 0)

    def _bundle_begin(self, chain: Chain, size_bytes: float) -> int:
        """With boundaries: back to the last place where a hit can end. Without: so many bytes of what ranks as low."""
        nodes, before = self.nodes, chain[:-1]
        stays = nodes.children[before] > 1
        if self.coverage.has_boundaries:
            stays |= nodes.is_boundary[before]
        else:
            stays |= nodes.rank[before] > nodes.rank[chain[-1]]
            units = 1 + int(size_bytes // self.coverage.bundle_bytes(self.unit))
            stays[: max(0, len(chain) - units)] = True
        places = stays.nonzero()[0]
        return places.item(-1) + 1 if len(places) else 0

    def _forget(self, bundle: Chain) -> None:
        self._forget_pages(bundle, self.coverage.kinds)
        self._remove(bundle)

    def _remove(self, bundle: Chain) -> None:
        leaf = bundle.item(-1)
        self.leaves.paths.pop(leaf, None)
        if leaf in self._before:
            self._forget_end(leaf)
        parent = self.nodes.remove(bundle)
        if parent != NO_NODE and not self.nodes.children[parent]:
            self.leaves.push(parent)

    def _forget_end(self, node: int) -> None:
        before = self._before.pop(node)
        self.ends[before].remove(node)
        if not self.ends[before]:
            del self.ends[before]

    def _forget_pages(self, chain: Chain, kinds: Kinds) -> None:
        for memory, own in zip(self.memories, kinds, strict=True):
            memory.forget(chain, own)

    def drop(self) -> None:
        """Forgets everything that no request holds, and everything else with it."""
        while len(leaves := self.nodes.leaves()):
            for leaf in leaves:
                self._forget(np.array([leaf]))
        self.leaves.clear()

    def drop_scope(self, scope: bytes) -> None:
        """The same for chains of one scope: their keys begin with it."""
        while leaves := [leaf for leaf in self.nodes.leaves().tolist() if self._is_of(leaf, scope)]:
            for path in map(self.nodes.path, leaves):
                forks = np.flatnonzero(self.nodes.children[path[:-1]] > 1)
                self._forget(path[int(forks[-1]) + 1 if len(forks) else 0 :])

    def _is_of(self, node: int, scope: bytes) -> bool:
        return bool((self.nodes.key[node] or b"").startswith(scope))
