"""Recurrent states that steps write for the cache, at the places where a later request may continue.

launch     pages are taken and pinned, and the step writes the state to them
settled    the pages are attached to the node of the prefix index
given up   a running request needs pages: the pins are dropped; the next owner of such a page writes it in a later step
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.cache.memory import StageMemory
from quire.cache.pool import Holder
from quire.core.events import PrefixEvicted, Publisher
from quire.core.step import Capture, Ints
from quire.prefix.coverage import Kinds
from quire.prefix.index import PrefixIndex
from quire.prefix.nodes import Chain

MOST_EVICTIONS = 4
"""The most evictions to make room for one state, or for the pages that one request copies."""


@dataclass(frozen=True, slots=True)
class Captured:
    """States of a row after `units` units, in pages that are pinned until their step has settled."""

    units: int
    pages: tuple[tuple[int, int, Ints], ...]
    """(stage, kind, pages)."""


class Captures:
    """Pages that steps in flight write states to, by row."""

    def __init__(self, index: PrefixIndex, memories: list[StageMemory], publisher: Publisher) -> None:
        self._index, self._memories, self._publisher = index, memories, publisher
        self._by_row: dict[int, list[Captured]] = {}
        """In ascending order of tokens."""

    def __contains__(self, row: int) -> bool:
        return row in self._by_row

    def take(self, row: int, entry: int, tokens: int, is_spare: bool) -> list[Capture]:
        """Takes pages for the states of a row after `tokens` tokens, if there is room or room can be made. `entry`: the
        row's place in the step."""
        if not self._has_room(is_spare):
            return []
        pages = tuple(
            (stage, kind, memory.pool.take(kind, memory.tables[kind].plan.groups, Holder.PIN))
            for stage, (memory, kinds) in enumerate(zip(self._memories, self._index.coverage.states, strict=True))
            for kind in kinds
        )
        self._by_row.setdefault(row, []).append(Captured(tokens // self._index.unit, pages))
        return [Capture(entry, tokens, *own) for own in pages]

    def _has_room(self, is_spare: bool) -> bool:
        """Whether there is room for one more state of each kind. Prefixes are evicted for a boundary, and for a spare
        that is worth more than they are."""
        coverage = self._index.coverage
        for _ in range(MOST_EVICTIONS):
            if coverage.has_checkpoint_room() and coverage.has_free_pages(coverage.states):
                return True
            if (is_spare and not self._index.spares.are_worth_more()) or not self._evict():
                return False
        return False

    def make_room(self, kinds: Kinds) -> bool:
        """Whether there is a page for each group of these kinds; prefixes are evicted for them."""
        for _ in range(MOST_EVICTIONS):
            if self._index.coverage.has_free_pages(kinds) or not self._evict():
                break
        return self._index.coverage.has_free_pages(kinds)

    def _evict(self) -> bool:
        evicted = self._index.evict(0, must=False)
        if evicted.pieces:
            self._publisher.publish(PrefixEvicted(self._publisher.step, *evicted))
        return bool(evicted.pieces)

    def attach(self, row: int, chain: Chain) -> int:
        """Attaches settled states to their nodes, unless those have one. Returns how many states have settled."""
        attached, captured = 0, self._by_row.get(row, [])
        while captured and captured[0].units <= len(chain):
            one = captured.pop(0)
            node = chain.item(one.units - 1)
            for stage, kind, pages in one.pages:
                self._memories[stage].attach_state(kind, node, pages)
            attached += 1
        if not captured:
            self._by_row.pop(row, None)
        return attached

    def give_up(self) -> bool:
        """Frees all pages. False: there are none."""
        rows = list(self._by_row)
        for row in rows:
            self.leave(row)
        return bool(rows)

    def leave(self, row: int) -> None:
        """The row is given up, or its pages are needed: the states are not kept."""
        for one in self._by_row.pop(row, ()):
            for stage, kind, pages in one.pages:
                self._memories[stage].pool.drop(kind, pages, Holder.PIN)
