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
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

import numpy as np

from quire.cache.boundaries import Boundaries
from quire.cache.coverage import Coverage
from quire.cache.eviction import Eviction
from quire.cache.ghosts import Ghost
from quire.cache.keys import end_key
from quire.cache.memory import StageMemory
from quire.cache.nodes import NO_NODE, NO_NODES, Chain, Nodes
from quire.cache.reuse_times import Forecast, Origin, ReuseTimes, class_of_one
from quire.core.reasons import Why
from quire.core.request import Tokens
from quire.kinds import Counts
from quire.plan.plan import Plan

BOUNDARIES_KEPT = 2
"""Of a chain that goes on: where its last prompt and its last turn ended; older ones are worth less, unless shared."""


SPARES_ANYHOW = 8
"""One prompt in so many keeps what it leaves on its way whatever that is worth."""
FREE_SHARE = 0.1
"""Of the pool: while more is free, everything is kept."""
MOST_HOT = 0.25
"""Of the pool, at most, that admission leaves to prefixes which queued requests would go on from."""
SPARE_GAIN = 2048
"""Tokens that a hit on the way of a prompt is thought to save, before it is known."""


def spare_class(tokens_ahead: int) -> int:
    """Of spares with so many tokens of their prompt ahead: near its end, not far from it, elsewhere."""
    line = 0 if tokens_ahead < 512 else 1 if tokens_ahead < 2048 else 2
    return class_of_one(Origin.SPARE, line, 0)


class Place(NamedTuple):
    """A node, and its key to tell whether it still is the same."""

    node: int
    key: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Hit:
    """A prefix of `tokens` tokens that can be adopted, along `chain`; 0 tokens: a miss, and why."""

    tokens: int
    chain: Chain
    """Nodes of whole units, then that of an end between units if the hit is there."""
    overlap: int = 0
    """Units that were computed before, whether or not a hit can end there."""
    miss: Why | None = None


def _behind(chain: Chain, node: int) -> Chain:
    return np.concatenate((chain, (node,)))


def missed(miss: Why, overlap: int = 0) -> Hit:
    return Hit(0, np.empty(0, dtype=np.int64), overlap, miss)


class Evicted(NamedTuple):
    """What one call evicted."""

    tokens: int = 0
    """At the ends of chains."""
    pieces: int = 0
    """Ends of chains, boundaries and groups of spares; 0: nothing."""


class PrefixIndex:
    def __init__(self, plan: Plan, memories: list[StageMemory], forecast: Forecast | None = None) -> None:
        self.memories = memories
        self.coverage = Coverage(plan, memories)
        self.disabled, self.unit = self.coverage.disabled, self.coverage.unit
        self.nodes = Nodes()
        self.boundaries = Boundaries(self.nodes, self.coverage, memories)
        self.eviction = Eviction(self.nodes, self.boundaries, self.coverage, memories, forecast or ReuseTimes())
        self.arrivals = 0
        """Requests so far."""
        self.ends: dict[bytes, list[int]] = {}
        """Ends of turns between units, by the key of the unit before (or the root)."""
        self._before: dict[int, bytes] = {}
        self._awaits = 0
        """Requests in the queue that await something here."""
        self._hot: dict[int, float] = {}
        """Nodes that queued requests would go on from, and their bytes."""
        self._hot_bytes = 0.0

    # ── looking up ────────────────────────────────────────────────────────

    def find(self, keys: Sequence[bytes], root: bytes, tokens: Tokens, most_tokens: int | None = None) -> Hit:
        """The greatest boundary that every kind can prove, before the last of `tokens`. Changes nothing."""
        if self.disabled:
            return missed(Why.DISABLED)
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

    def _why(self, most: int, depth: int) -> Why:
        if depth:
            return Why.CHECKPOINT_ABSENT if self.coverage.has_states else Why.TAIL_EVICTED
        return Why.NO_OVERLAP if most else Why.BELOW_UNIT

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

    def parts_at(self, keys: Sequence[bytes], overlap: int, most: int) -> int:
        """Units after which a prompt parts from one that was computed before, cached or evicted; 0: it does not, or it
        goes on from where that one ended."""
        depth = self.eviction.ghosts.depth(keys[:most], overlap)
        if depth > overlap:
            return 0 if self.eviction.ghosts.at_end(keys[depth - 1]) is not None else depth
        return depth if depth and depth < most and self._goes_on(keys[:depth]) else 0

    def _goes_on(self, keys: Sequence[bytes]) -> bool:
        """Whether something other than ends of turns between units follows these units, which are cached."""
        node = self.nodes.follow(keys, len(keys)).item(-1)
        return self.nodes.children.item(node) > len(self.ends.get(keys[-1], ()))

    # ── uses ──────────────────────────────────────────────────────────────

    def use(self, chain: Chain) -> None:
        """A request goes on from the chain's end: how long that took is learned."""
        if self.coverage.has_boundaries:
            self._use_place(chain)
            return
        nodes, eviction = self.nodes, self.eviction
        used = nodes.used[chain]
        for place in (*(used[1:] != used[:-1]).nonzero()[0].tolist(), len(chain) - 1):
            eviction.forecast.note_use(eviction.class_of(chain.item(place)), eviction.now - used.item(place))
        nodes.used[chain] = eviction.tick()
        nodes.uses[chain] += 1
        if not nodes.children[chain[-1]]:
            eviction.push(chain.item(-1))

    def miss(self, keys: Sequence[bytes], units: int, overlap: int, most: int) -> None:
        """A request goes on from `units` units of its prompt, `most` of which could be reused and `overlap` are cached:
        what it would have found of all that was evicted is learned from."""
        ghosts = self.eviction.ghosts
        depth = ghosts.depth(keys[:most], overlap)
        if not self.coverage.has_boundaries:
            for _, _, ghost in ghosts.along(keys[:most], overlap):
                self._miss(ghost)
            return
        place = ghosts.last_end(keys, units, depth)
        missed = ghosts.at_end(keys[place]) if place is not None else None
        if missed is None and depth > units:
            missed = ghosts.over(keys, depth - 1)
        if missed is not None:
            self._miss(missed)

    def _use_place(self, chain: Chain) -> None:
        nodes, eviction, node = self.nodes, self.eviction, chain.item(-1)
        if nodes.is_boundary[node]:
            eviction.forecast.note_use(eviction.class_of(node), eviction.now - nodes.used.item(node))
        else:
            number = nodes.group.item(node)
            if (group := self.boundaries.groups.get(number)) is not None:
                eviction.forecast.note_use(group.kind, eviction.now - group.used)
                self.boundaries.groups[number] = replace(group, used=eviction.tick())
                eviction.push_group(number)
            self.promote(chain)
        nodes.used[node] = eviction.tick()
        nodes.uses[node] += 1
        eviction.push(node)

    def _miss(self, ghost: Ghost) -> None:
        """Something that was evicted would have been used."""
        if not ghost.is_counted:
            ghost.is_counted = True
            self.eviction.forecast.note_use(ghost.kind, self.eviction.now - ghost.used)
        ghost.uses += 1

    def expect(self, chain: Chain) -> int:
        """A queued request would go on from the chain's end, which is evicted last for that. Returns the node."""
        if self.coverage.has_boundaries:
            self.promote(chain)
        node = chain.item(-1)
        self._awaits += 1
        self.nodes.awaited[node] += 1
        if node not in self._hot:
            self._hot[node] = size = self.coverage.bundle_bytes(self._own_tokens(chain))
            self._hot_bytes += size
        return node

    def _own_tokens(self, chain: Chain) -> int:
        """Tokens of a chain since others parted from it."""
        nodes = self.nodes
        forks = (nodes.children[chain[:-1]] > 1).nonzero()[0]
        return nodes.tokens.item(chain.item(-1)) - (nodes.tokens.item(chain.item(forks[-1])) if len(forks) else 0)

    def hot_share(self, but: Place | None = None) -> float:
        """Of the pool, what prefixes take that queued requests would go on from, but for one, up to a quarter."""
        size = self._hot_bytes - (self._hot.get(but.node, 0.0) if but is not None else 0.0)
        return min(MOST_HOT, size / self.coverage.pool_bytes)

    def _cool(self, node: int) -> None:
        """Nothing in the queue waits for it any more, or it is gone."""
        self._hot_bytes -= self._hot.pop(node, 0.0)

    def no_longer_expect(self, node: int, key: bytes) -> None:
        nodes = self.nodes
        self._awaits -= 1
        if nodes.key[node] == key and nodes.awaited[node]:
            nodes.awaited[node] -= 1
            if not nodes.awaited[node]:
                self._cool(node)
            if not nodes.awaited[node] and (not nodes.children[node] or nodes.is_boundary[node]):
                self.eviction.push(node)

    def promote(self, chain: Chain) -> None:
        """A hit ends, or will end, where spares lie: they become a boundary."""
        node = chain.item(-1)
        if node not in self.boundaries.tails:
            self.boundaries.mark(chain)
            self._describe(chain, Origin.JUNCTION, 0)

    # ── keeping ───────────────────────────────────────────────────────────

    def remember(self, row: int, keys: Sequence[bytes], units: int, known: Chain = NO_NODES, line: int = 0) -> Chain:
        """Keeps what a row holds of its first `units` units, for the kinds that grow; returns their nodes.

        `known`: what this returned for the row before. Until `settle` is called with them, new nodes are not evicted.
        """
        chain = self.nodes.follow(keys, units, known)
        depth = len(chain)
        if depth < units:
            ends = self.unit * np.arange(depth + 1, units + 1)
            new = self._add(keys[depth:units], int(chain[-1]) if depth else NO_NODE, ends, line)
            for memory, kinds in zip(self.memories, self.coverage.growing, strict=True):
                memory.keep_new(kinds, row, new, depth)
            chain = np.concatenate([chain, new]) if depth else new
        return chain

    def settle(self, chain: Chain) -> None:
        """Everything up to the chain's end is kept now, and can be evicted."""
        leaf = chain.item(-1)
        if not self.nodes.is_there[leaf]:
            return  # a checkpoint on the way had to push it out
        if not self.coverage.has_boundaries:
            self.nodes.used[chain] = self.eviction.tick()
        if not self.nodes.children[leaf]:
            self.eviction.paths[leaf] = chain
            self.eviction.push(leaf)

    def keep_boundary(self, row: int, chain: Chain, origin: Origin, line: int) -> None:
        """Keeps what kinds with a tail need for a hit at the chain's end. The row's live set has not passed it."""
        self.boundaries.keep(row, chain)
        self._describe(chain, origin, line)

    def _describe(self, chain: Chain, origin: Origin, line: int) -> None:
        """What a boundary at the chain's end is worth from now on."""
        nodes, node = self.nodes, chain.item(-1)
        nodes.origin[node] = origin
        nodes.used[node], nodes.line[node] = self.eviction.tick(), line
        marked = chain[nodes.is_boundary[chain].nonzero()[0]].tolist()
        shared = (one for one in reversed(marked) if one != node and (nodes.children[one] > 1 or nodes.uses[one] > 1))
        nodes.gain[node] = nodes.tokens.item(node) - sum(nodes.tokens.item(one) for one in islice(shared, 1))
        ghost = self.eviction.ghosts.at_end(nodes.key[node])
        nodes.uses[node] = max(nodes.uses.item(node), ghost.uses if ghost is not None else 0)
        self.eviction.push(node)

    def keep_end(
        self,
        row: int,
        keys: Sequence[bytes],
        units: int,
        root: bytes,
        behind: Tokens,
        came_from: Place | None,
        known: Chain,
        line: int,
    ) -> Chain:
        """A turn ended with some tokens behind so many units: the row's pages stay where they are, its states too.
        Returns its chain.

        `came_from`: the boundary that it went on from, hardly of more use unless others went on from there as well.
        """
        chain = self.remember(row, keys, units, known, line)
        if self.coverage.has_boundaries:
            chain = self._keep_turn(row, keys, root, behind, came_from, chain, line)
        if len(chain):
            self.settle(chain)
        return chain

    def _keep_turn(
        self,
        row: int,
        keys: Sequence[bytes],
        root: bytes,
        behind: Tokens,
        came_from: Place | None,
        chain: Chain,
        line: int,
    ) -> Chain:
        """A boundary where the turn ended, wherever that is; returns its chain."""
        units = len(chain)
        if len(behind):
            chain = _behind(chain, self._end_node(keys[units - 1] if units else root, chain, behind, line))
            self.boundaries.keep_pages(self.coverage.growing, row, chain[-1:], units)
        self.boundaries.keep_pages(self.coverage.states, row, chain[-1:], 0)
        self.keep_boundary(row, chain, Origin.TURN, line)
        self._pass(chain, came_from)
        return chain

    def _pass(self, chain: Chain, came_from: Place | None) -> None:
        """A chain went on to a new end: boundaries before are hardly of use, but for the newest and those that others
        use too."""
        nodes = self.nodes
        marked = chain[nodes.is_boundary[chain].nonzero()[0]].tolist()[:-BOUNDARIES_KEPT]
        old = [node for node in marked if nodes.children[node] <= 1 and nodes.uses[node] <= 1]
        if came_from is not None and nodes.key[came_from.node] == came_from.key and came_from.node != chain[-1]:
            old += [came_from.node] if nodes.uses[came_from.node] <= 1 else []
        for node in old:
            if nodes.origin[node] != Origin.PASSED and node in self.boundaries.tails:
                nodes.origin[node] = Origin.PASSED
                self.eviction.push(node)

    def _end_node(self, before: bytes, chain: Chain, behind: Tokens, line: int) -> int:
        key = end_key(before, behind)
        node = self.nodes.find(key)
        if node is None:
            end = len(chain) * self.unit + len(behind)
            node = self._add([key], chain.item(-1) if len(chain) else NO_NODE, np.array([end]), line).item(0)
            self.ends.setdefault(before, []).append(node)
            self._before[node] = before
        return node

    def keep_spares(self, row: int, chain: Chain, first_unit: int, ahead_units: int, states: int) -> None:
        """What a prompt leaves on its way through the chain's last units, from `first_unit` on: tails, and so many
        states. `ahead_units`: how many whole units of the prompt follow."""
        nodes, eviction = self.nodes, self.eviction
        if not states and not any(self.coverage.tails):
            return
        marked = nodes.is_boundary[chain[:first_unit]].nonzero()[0]
        before = nodes.tokens.item(chain.item(marked.item(-1))) if len(marked) else 0
        gain = nodes.tokens.item(chain.item(-1)) - before
        worth = self.coverage.spare_worth(gain, (len(chain) - first_unit) * self.unit, states)
        number = self.boundaries.keep_spares(
            row, chain, first_unit, spare_class(ahead_units * self.unit), eviction.tick(), worth
        )
        if number:
            eviction.push_group(number)

    def wants_spares(self) -> bool:
        """Whether what a prompt leaves on its way is worth keeping: there is room, or it is worth more than what was
        evicted last. Some keep it all the same, to be learned from."""
        if not self.eviction.forecast.learns or self.arrivals % SPARES_ANYHOW == 0:
            return True
        if all(memory.pool.free_sheets > FREE_SHARE * memory.stage.sheets for memory in self.memories):
            return True
        return self.spares_are_worth_more()

    def spares_are_worth_more(self) -> bool:
        """Whether what a prompt leaves on its way is worth more than what was evicted last."""
        worth = self.coverage.spare_worth(SPARE_GAIN, SPARE_GAIN, SPARE_GAIN // (self.coverage.spare_units * self.unit))
        return self.eviction.forecast.value(spare_class(SPARE_GAIN), 0.0, 0.0, worth) > self.eviction.last_rank

    def lost(self, node: int) -> None:
        """A row took over pages without which no hit can end here."""
        if node in self._before:
            self._forget(np.array([node]))
        else:
            self.boundaries.drop(node)

    def _add(self, keys: Sequence[bytes], parent: int, ends: Counts, line: int) -> Chain:
        while self.nodes.is_short_of(len(keys)):
            self.nodes.widen()
            for memory in self.memories:
                memory.widen()
        self.eviction.paths.pop(parent, None)
        nodes = self.nodes.add(keys, parent, ends, self.eviction.tick(), line)
        if parent != NO_NODE and self.nodes.is_boundary[parent] and self.nodes.children[parent] == 1:
            self.eviction.push(parent)  # it was the end of a chain, and gives fewer bytes back from now on
        if not self.coverage.has_boundaries and (ghost := self.eviction.ghosts.first(keys[0])) is not None:
            self.nodes.uses[nodes[: self.eviction.ghosts.depth(keys, 0)]] = ghost.uses
        return nodes

    # ── evicting ──────────────────────────────────────────────────────────

    def evict(self, size_bytes: float, must: bool, even_awaited: bool = False) -> Evicted:
        """Evicts what is worth least, about so many bytes, and more only to reach a boundary.

        If nothing gives a page back and it must be, the lowest goes all the same: behind it lie nodes whose pages may.
        `even_awaited`: what queued requests would go on from, too, after everything else.
        """
        bundles: list[Chain] = []
        tokens, pieces, given = 0, 0, 0.0
        while given < size_bytes or not pieces:
            found = self.eviction.lowest(must and not pieces, even_awaited and not pieces)
            if found is None:
                break
            pieces += 1
            if found < 0:
                given += self._drop_group(-found)
            elif self.nodes.children[found]:
                given += self._drop_boundary(found)
            else:
                bundle, forgotten = self._cut_off(found, size_bytes - given)
                bundles.append(bundle)
                tokens += forgotten
                given += self.coverage.bundle_bytes(forgotten)
        if bundles:
            self._forget_pages(bundles[0] if len(bundles) == 1 else np.concatenate(bundles))
        return Evicted(tokens, pieces)

    def _drop_group(self, number: int) -> float:
        group = self.boundaries.groups[number]
        own = self.boundaries.drop_group(number)
        keys = self.nodes.key[own].tolist()
        self.eviction.remember(keys, group.kind, group.used, 0, 0, b"", self.arrivals)
        return self.coverage.spare_bytes(len(own) * self.unit)

    def _drop_boundary(self, node: int) -> float:
        """The chains that go on here stay."""
        self._note_evicted(node, [self.nodes.key[node]])
        self.boundaries.drop(node)
        return self.coverage.boundary_bytes

    def _note_evicted(self, node: int, keys: list[bytes]) -> None:
        """`keys`: of the units that go with it. What ended between two units is remembered under the one before."""
        nodes, eviction = self.nodes, self.eviction
        if node in self._before:
            keys = [*keys[:-1], self._before[node]]
        end = keys[-1] if self.coverage.has_boundaries and nodes.is_boundary[node] else b""
        line = nodes.line.item(node)
        uses, used = nodes.uses.item(node), nodes.used.item(node)
        eviction.remember(keys, eviction.class_of(node), used, uses, line, end, self.arrivals)

    def _cut_off(self, leaf: int, size_bytes: float) -> tuple[Chain, int]:
        """Takes nodes out, from a leaf upwards, as far as they are of one bundle; how many tokens it had."""
        nodes = self.nodes
        chain = self.eviction.path(leaf)
        begin = self._bundle_begin(chain, size_bytes)
        bundle = chain[begin:]
        self._note_evicted(leaf, nodes.key[bundle].tolist())
        before = chain.item(begin - 1) if begin else NO_NODE
        if begin and nodes.is_boundary[before]:
            self._inherit(before, leaf)
        tokens = nodes.tokens.item(leaf) - (nodes.tokens.item(before) if begin else 0)
        self._remove(bundle)
        if begin and not nodes.children[before]:
            self.eviction.paths[before] = chain[:begin]
        return bundle, tokens

    def _inherit(self, before: int, leaf: int) -> None:
        """Whoever would have gone on from the leaf goes on from the boundary before it now."""
        nodes = self.nodes
        nodes.used[before] = max(nodes.used.item(before), nodes.used.item(leaf))
        if nodes.origin[before] == Origin.PASSED:
            nodes.origin[before], nodes.line[before] = nodes.origin[leaf], nodes.line[leaf]

    def _bundle_begin(self, chain: Chain, size_bytes: float) -> int:
        """With boundaries: back to the last place where a hit can end. Without: so many bytes of what is used alike."""
        nodes, begin = self.nodes, 0
        if not self.coverage.has_boundaries:
            begin = max(0, len(chain) - 1 - int(size_bytes // self.coverage.bundle_bytes(self.unit)))
        before = chain[begin:-1]
        stays = nodes.children[before] > 1
        if self.coverage.has_boundaries:
            stays |= nodes.is_boundary[before] > 0
        else:
            stays |= (nodes.used[before] != nodes.used[chain[-1]]) | (nodes.uses[before] != nodes.uses[chain[-1]])
        if self._awaits:
            stays |= nodes.awaited[before] > 0
        places = stays.nonzero()[0]
        return begin + places.item(-1) + 1 if len(places) else begin

    def _forget(self, bundle: Chain) -> None:
        self._forget_pages(bundle)
        self._remove(bundle)

    def _remove(self, bundle: Chain) -> None:
        leaf = bundle.item(-1)
        self.eviction.paths.pop(leaf, None)
        if leaf in self._before:
            self._forget_end(leaf)
        if self.boundaries.tails:
            self.boundaries.leave(bundle)
        for node in bundle.tolist() if self._hot else ():
            self._cool(node)
        parent = self.nodes.remove(bundle)
        if parent != NO_NODE and not self.nodes.children[parent]:
            self.eviction.push(parent)

    def _forget_end(self, node: int) -> None:
        before = self._before.pop(node)
        self.ends[before].remove(node)
        if not self.ends[before]:
            del self.ends[before]

    def _forget_pages(self, chain: Chain) -> None:
        for memory, own in zip(self.memories, self.coverage.kinds, strict=True):
            memory.forget(chain, own)

    def drop(self) -> None:
        """Forgets everything that no request holds, and everything else with it."""
        while len(leaves := self.nodes.leaves()):
            for leaf in leaves:
                self._forget(np.array([leaf]))
        self.boundaries.clear()
        self.eviction.clear()
        self.eviction.ghosts.forget(b"")

    def drop_unlikely(self) -> None:
        """Spares go, and boundaries that chains have passed: what is left is kept for a use that is likely."""
        for number in list(self.boundaries.groups):
            self.boundaries.drop_group(number)
        for node in [node for node in self.boundaries.tails if self.nodes.origin[node] == Origin.PASSED]:
            if self.nodes.children[node]:
                self.boundaries.drop(node)
            else:
                self._forget(np.array([node]))

    def drop_scope(self, scope: bytes) -> None:
        """The same for chains of one scope: their keys begin with it."""
        while leaves := [leaf for leaf in self.nodes.leaves().tolist() if self._is_of(leaf, scope)]:
            for path in map(self.nodes.path, leaves):
                forks = np.flatnonzero(self.nodes.children[path[:-1]] > 1)
                self._forget(path[int(forks[-1]) + 1 if len(forks) else 0 :])
        self.eviction.ghosts.forget(scope)

    def _is_of(self, node: int, scope: bytes) -> bool:
        return bool((self.nodes.key[node] or b"").startswith(scope))
