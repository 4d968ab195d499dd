"""What the forecast learns from each request: from the prefix that it found, and from what was evicted too early."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from quire.prefix.boundaries import Boundaries
from quire.prefix.coverage import Coverage
from quire.prefix.eviction import Eviction
from quire.prefix.ghosts import Ghost
from quire.prefix.nodes import Chain, Nodes


class Uses:
    """Reports to the forecast how long prefixes waited for their next use."""

    def __init__(self, nodes: Nodes, boundaries: Boundaries, coverage: Coverage, eviction: Eviction) -> None:
        self._nodes, self._boundaries, self._coverage, self._eviction = nodes, boundaries, coverage, eviction

    def note_hit(self, chain: Chain) -> None:
        """A request continues from the chain's end: the forecast learns the time since its last use."""
        if self._coverage.has_boundaries:
            self._note_place(chain)
            return
        nodes, eviction = self._nodes, self._eviction
        used = nodes.used[chain]
        for place in (*(used[1:] != used[:-1]).nonzero()[0].tolist(), len(chain) - 1):
            eviction.forecast.note_use(eviction.class_of(chain.item(place)), eviction.now - used.item(place))
        nodes.used[chain] = eviction.tick()
        nodes.uses[chain] += 1
        if not nodes.children[chain[-1]]:
            eviction.push(chain.item(-1))

    def _note_place(self, chain: Chain) -> None:
        nodes, eviction, node = self._nodes, self._eviction, chain.item(-1)
        if nodes.is_boundary[node]:
            eviction.forecast.note_use(eviction.class_of(node), eviction.now - nodes.used.item(node))
        else:
            number = nodes.group.item(node)
            if (group := self._boundaries.groups.get(number)) is not None:
                eviction.forecast.note_use(group.kind, eviction.now - group.used)
                self._boundaries.groups[number] = replace(group, used=eviction.tick())
                eviction.push_group(number)
            eviction.promote(chain)
        nodes.used[node] = eviction.tick()
        nodes.uses[node] += 1
        eviction.push(node)

    def note_miss(self, keys: Sequence[bytes], units: int, overlap: int, most: int) -> None:
        """A request reuses `units` units of its prompt; `most` could be reused, and `overlap` are cached. The forecast
        learns from evicted prefixes that the request would have found."""
        ghosts = self._eviction.ghosts
        depth = ghosts.depth(keys[:most], overlap)
        if not self._coverage.has_boundaries:
            for _, _, ghost in ghosts.along(keys[:most], overlap):
                self._note_ghost(ghost)
            return
        place = ghosts.last_end(keys, units, depth)
        missed = ghosts.at_end(keys[place]) if place is not None else None
        if missed is None and depth > units:
            missed = ghosts.over(keys, depth - 1)
        if missed is not None:
            self._note_ghost(missed)

    def _note_ghost(self, ghost: Ghost) -> None:
        """An evicted prefix would have been used."""
        if not ghost.is_counted:
            ghost.is_counted = True
            self._eviction.forecast.note_use(ghost.kind, self._eviction.now - ghost.used)
        ghost.uses += 1
