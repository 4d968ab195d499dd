"""The index of computed prefixes and the pages that hold them.

    key 0 ─▶ key 1 ─▶ key 2 ─▶ key 3 ─▶ end         a node per unit of tokens, and one where a turn ended between units
      │        │        │        │       │
    full     full     full     full    full         kinds that grow keep their pages at every node
                      window   window  window       others at boundaries only: where a prompt ends, prompts diverge
                        ◆                ◆          (◆ a state's checkpoint), or a turn ended

A hit ends at the greatest boundary where every kind has what it needs. Evictions remove bundles, from a chain's end to
the boundary before it, so that no kind keeps pages that are useless without another kind's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quire.cache.memory import StageMemory
from quire.core.reasons import Why
from quire.core.request import Tokens
from quire.kinds import Counts
from quire.plan.plan import Plan
from quire.prefix.awaited import Awaited
from quire.prefix.boundaries import Boundaries
from quire.prefix.coverage import Coverage
from quire.prefix.eviction import Eviction
from quire.prefix.follower import Follower
from quire.prefix.forecast import Forecast, Origin, ReuseTimes
from quire.prefix.hit import Evicted, Hit, Place, Turn, no_hit
from quire.prefix.keys import end_key
from quire.prefix.leases import Leases
from quire.prefix.nodes import NO_NODE, NO_NODES, Chain, Nodes
from quire.prefix.spares import Spares
from quire.prefix.uses import Uses

BOUNDARIES_KEPT = 2
"""Of a chain that grows: where its last prompt and its last turn ended; older ones are worth less, unless shared."""


def _append(chain: Chain, node: int) -> Chain:
    return np.concatenate((chain, (node,)))


class PrefixIndex:
    """Finds the longest cached prefix of a prompt, keeps what rows computed, and evicts what is worth least."""

    def __init__(self, plan: Plan, memories: list[StageMemory], forecast: Forecast | None = None) -> None:
        self.memories = memories
        self.coverage = Coverage(plan, memories)
        self.disabled, self.unit = self.coverage.disabled, self.coverage.unit
        self.nodes = Nodes()
        self.boundaries = Boundaries(self.nodes, self.coverage, memories)
        self.eviction = Eviction(self.nodes, self.boundaries, self.coverage, memories, forecast or ReuseTimes())
        self.awaited = Awaited(self.nodes, self.coverage, self.eviction)
        self.uses = Uses(self.nodes, self.boundaries, self.coverage, self.eviction)
        self.spares = Spares(self.nodes, self.boundaries, self.coverage, self.eviction, memories)
        self.leases = Leases(self.nodes, self.boundaries, self.coverage, self.eviction)
        self.arrivals = 0
        """Requests that have arrived so far."""
        self.ends: dict[bytes, list[int]] = {}
        """Ends of turns between units, by the key of the unit before (or the root)."""
        self._before: dict[int, bytes] = {}
        self.follower: Follower | None = None

    # ── looking up ────────────────────────────────────────────────────────

    def find(self, keys: Sequence[bytes], root: bytes, tokens: Tokens, most_tokens: int | None = None) -> Hit:
        """The greatest boundary before the last of `tokens` where every kind has what it needs. Changes nothing."""
        if self.disabled:
            return no_hit(Why.DISABLED)
        limit = len(tokens) - 1 if most_tokens is None else most_tokens
        most = limit // self.unit
        chain = self.nodes.follow(keys, most)
        depth = units = len(chain)
        if (self.coverage.has_boundaries or self.ends) and (depth or root in self.ends):
            usable = self.coverage.usable(chain, self.nodes.tokens[chain]).nonzero()[0] if depth else NO_NODES
            units = int(usable[-1]) + 1 if len(usable) else 0
            end = self._find_end(keys, root, tokens[:limit], units, chain)
            if end is not None:
                stop = int(self.nodes.tokens[end])
                return Hit(stop, _append(chain[: stop // self.unit], end), depth)
        if units:
            return Hit(units * self.unit, chain[:units], depth)
        return no_hit(self._why(most, depth), depth)

    def _why(self, most: int, depth: int) -> Why:
        if depth:
            return Why.CHECKPOINT_ABSENT if self.coverage.has_states else Why.TAIL_EVICTED
        return Why.NO_OVERLAP if most or not len(self.nodes) else Why.BELOW_UNIT

    def _find_end(self, keys: Sequence[bytes], root: bytes, tokens: Tokens, units: int, chain: Chain) -> int | None:
        """The deepest end of a turn between units, after at least `units` units, whose tokens are equal to these."""
        for unit in range(len(chain), units - 1, -1) if self.ends else ():
            before = keys[unit - 1] if unit else root
            for end in sorted(self.ends.get(before, ()), key=lambda node: -int(self.nodes.tokens[node])):
                stop = int(self.nodes.tokens[end])
                is_it = stop <= len(tokens) and self.nodes.key[end] == end_key(before, tokens[unit * self.unit : stop])
                if is_it and self._is_usable(_append(chain[:unit], end)):
                    return end
        return None

    def _is_usable(self, chain: Chain) -> bool:
        return bool(self.coverage.usable(chain, self.nodes.tokens[chain])[-1])

    def parts_at(self, keys: Sequence[bytes], overlap: int, most: int) -> int:
        """Units after which a prompt diverges from one that was computed before, cached or evicted; 0: it does not, or
        it continues from where that one ended."""
        depth = self.eviction.ghosts.depth(keys[:most], overlap)
        if depth > overlap:
            return 0 if self.eviction.ghosts.at_end(keys[depth - 1]) is not None else depth
        return depth if depth and depth < most and self._goes_on(keys[:depth]) else 0

    def _goes_on(self, keys: Sequence[bytes]) -> bool:
        """Whether something other than ends of turns between units follows these units, which are cached."""
        node = self.nodes.follow(keys, len(keys)).item(-1)
        return self.nodes.children.item(node) > len(self.ends.get(keys[-1], ()))

    # ── uses ──────────────────────────────────────────────────────────────

    def expect(self, chain: Chain) -> int:
        """A queued request would continue from the chain's end, which is therefore evicted last. Returns the node."""
        if self.coverage.has_boundaries:
            self.eviction.promote(chain)
        return self.awaited.add(chain)

    # ── keeping ───────────────────────────────────────────────────────────

    def remember(self, row: int, keys: Sequence[bytes], units: int, known: Chain = NO_NODES, line: int = 0) -> Chain:
        """Keeps a row's pages of its first `units` units, for the kinds that grow; returns their nodes.

        `known`: what this returned for the row before. Until `settle` is called with them, new nodes are not evicted.
        """
        chain = self.nodes.follow(keys, units, known)
        depth = len(chain)
        if depth < units:
            ends = self.unit * np.arange(depth + 1, units + 1)
            new = self._add(keys[depth:units], int(chain[-1]) if depth else NO_NODE, ends, line)
            if self.follower is not None:
                self.follower.added(row, keys, depth, units)
            for memory, kinds in zip(self.memories, self.coverage.growing, strict=True):
                memory.keep_new(kinds, row, new, depth)
            chain = np.concatenate([chain, new]) if depth else new
        return chain

    def settle(self, chain: Chain) -> None:
        """Everything up to the chain's end is kept now, and can be evicted."""
        leaf = chain.item(-1)
        if not self.nodes.is_there[leaf]:
            return  # it was evicted to make room for a checkpoint on the way
        if not self.coverage.has_boundaries:
            self.nodes.used[chain] = self.eviction.tick()
        if not self.nodes.children[leaf]:
            self.eviction.paths[leaf] = chain
            self.eviction.push(leaf)

    def keep_boundary(self, row: int, chain: Chain, origin: Origin, line: int) -> None:
        """Keeps what kinds with a tail need for a hit at the chain's end. The row's live set still includes it."""
        self.boundaries.keep(row, chain)
        self.eviction.describe(chain, origin, line)

    def keep_end(self, row: int, turn: Turn) -> Chain:
        """A turn ended: the cache keeps the row's pages and states in place. Returns its chain."""
        chain = self.remember(row, turn.keys, turn.units, turn.known, turn.line)
        if self.coverage.has_boundaries:
            chain = self._keep_turn(row, turn, chain)
        if len(chain):
            self.settle(chain)
        return chain

    def keep_point(self, row: int, turn: Turn) -> bool:
        """The same for a row that goes on, and for every model. False: a window has left what a hit there needs."""
        chain = self.remember(row, turn.keys, turn.units, turn.known, turn.line)
        if len(turn.rest) or self.coverage.has_boundaries:
            chain = self._keep_turn(row, turn, chain, Origin.JUNCTION)
        self.settle(chain)
        is_usable = self._is_usable(chain)
        if not is_usable:
            self.lost(chain.item(-1))
        return is_usable

    def _keep_turn(self, row: int, turn: Turn, chain: Chain, origin: Origin = Origin.TURN) -> Chain:
        """Keeps a boundary where the turn ended, also inside a unit; returns its chain."""
        chain = self.keep_rest(row, turn, chain)
        self.boundaries.keep_pages(self.coverage.states, row, chain[-1:], 0)
        self.keep_boundary(row, chain, origin, turn.line)
        self._pass(chain, turn.came_from)
        return chain

    def keep_rest(self, row: int, turn: Turn, chain: Chain) -> Chain:
        """Keeps the row's pages of kinds that grow for the turn's tokens after its whole units, which are the chain, if
        there are any. Returns the chain with the node of these tokens."""
        if not len(turn.rest):
            return chain
        before = turn.keys[turn.units - 1] if turn.units else turn.root
        chain = _append(chain, self._end_node(before, chain, turn.rest, turn.line))
        self.boundaries.keep_pages(self.coverage.growing, row, chain[-1:], turn.units)
        return chain

    def _pass(self, chain: Chain, came_from: Place | None) -> None:
        """A chain has a new end: marks boundaries before it as PASSED, except the newest and those that other requests
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

    def lost(self, node: int) -> None:
        """A row took over pages of this node: no hit can end here any more."""
        if node in self._before:
            self.forget(np.array([node]))
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
            self.eviction.push(parent)  # it was the end of a chain, and evicting it frees fewer bytes from now on
        if not self.coverage.has_boundaries and (ghost := self.eviction.ghosts.first(keys[0])) is not None:
            self.nodes.uses[nodes[: self.eviction.ghosts.depth(keys, 0)]] = ghost.uses
        return nodes

    def note_release(self) -> None:
        """A request freed its pages: evicting prefixes whose pages were all in use may free some now."""
        self.eviction.was_given_back = True

    # ── evicting ──────────────────────────────────────────────────────────

    def evict(self, size_bytes: float, must: bool, even_awaited: bool = False) -> Evicted:
        """Evicts what is worth least, about `size_bytes`, and more only to reach a boundary.

        `must`: if nothing frees a page, the lowest is evicted all the same, because nodes before it may free some.
        `even_awaited`: prefixes that queued requests would reuse are evicted too, after everything else.
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
        """Evicts an inner boundary; the chains that continue from it stay."""
        self._note_evicted(node, [self.nodes.key[node]])
        self.boundaries.drop(node)
        return self.coverage.boundary_bytes

    def _note_evicted(self, node: int, keys: list[bytes]) -> None:
        """`keys`: of the units that are evicted with it. An end between two units is remembered by the one before."""
        nodes, eviction = self.nodes, self.eviction
        if node in self._before:
            keys = [*keys[:-1], self._before[node]]
        end = keys[-1] if self.coverage.has_boundaries and nodes.is_boundary[node] else b""
        line = nodes.line.item(node)
        uses, used = nodes.uses.item(node), nodes.used.item(node)
        eviction.remember(keys, eviction.class_of(node), used, uses, line, end, self.arrivals)

    def _cut_off(self, leaf: int, size_bytes: float) -> tuple[Chain, int]:
        """Removes the nodes of one bundle, from a leaf upwards. Returns them, and how many tokens they had."""
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
        """Requests that would have continued from the leaf will continue from the boundary before it."""
        nodes = self.nodes
        nodes.used[before] = max(nodes.used.item(before), nodes.used.item(leaf))
        if nodes.origin[before] == Origin.PASSED:
            nodes.origin[before], nodes.line[before] = nodes.origin[leaf], nodes.line[leaf]

    def _bundle_begin(self, chain: Chain, size_bytes: float) -> int:
        """With boundaries: back to the last one. Without: about `size_bytes` of nodes with equal `used` and `uses`."""
        nodes, begin = self.nodes, 0
        if not self.coverage.has_boundaries:
            begin = max(0, len(chain) - 1 - int(size_bytes // self.coverage.bundle_bytes(self.unit)))
        before = chain[begin:-1]
        stays = nodes.children[before] > 1
        if self.coverage.has_boundaries:
            stays |= nodes.is_boundary[before] > 0
        else:
            stays |= (nodes.used[before] != nodes.used[chain[-1]]) | (nodes.uses[before] != nodes.uses[chain[-1]])
        if self.awaited.requests:
            stays |= nodes.awaited[before] > 0
        if self.leases.held:
            stays |= nodes.leased[before] > 0
        places = stays.nonzero()[0]
        return begin + places.item(-1) + 1 if len(places) else begin

    def forget(self, bundle: Chain) -> None:
        """Removes nodes with all their pages: the end of a chain, from which nothing branches off."""
        self._forget_pages(bundle)
        self._remove(bundle)

    def _remove(self, bundle: Chain) -> None:
        leaf = bundle.item(-1)
        self.eviction.paths.pop(leaf, None)
        units = bundle[:-1] if leaf in self._before else bundle
        if self.follower is not None and len(units):
            self.follower.removed(self.nodes.key[units].tolist())
        if leaf in self._before:
            self._forget_end(leaf)
        if self.boundaries.tails:
            self.boundaries.leave(bundle)
        self.awaited.forget(bundle)
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
        """Removes all nodes and ghosts; requests keep the pages that they hold."""
        while len(leaves := self.nodes.leaves()):
            for leaf in leaves:
                self.forget(np.array([leaf]))
        self.boundaries.clear()
        self.eviction.clear()
        self.eviction.ghosts.forget(b"")

    def drop_scope(self, scope: bytes) -> None:
        """Removes the chains and ghosts of one scope: their keys begin with it."""
        while leaves := [leaf for leaf in self.nodes.leaves().tolist() if self._is_of(leaf, scope)]:
            for path in map(self.nodes.path, leaves):
                forks = np.flatnonzero(self.nodes.children[path[:-1]] > 1)
                self.forget(path[int(forks[-1]) + 1 if len(forks) else 0 :])
        self.eviction.ghosts.forget(scope)

    def _is_of(self, node: int, scope: bytes) -> bool:
        return bool((self.nodes.key[node] or b"").startswith(scope))
