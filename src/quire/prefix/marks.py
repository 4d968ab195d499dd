"""Where a row will keep boundaries: after whole units of its prompt, and at points that are known before it runs.

    units     ├────────┼────────┼────────┤
    marks              ▲                 ▲    where prompts diverge, and the last whole unit of the prompt
    point                   ▲                 where the conversation's next turn will go on; between units too
    row       ────────────────────────────▶   the row goes on after a point: its page there belongs to both

Points are for models with windows or states: where every kind grows, a hit may end at every unit, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from quire.prefix.captures import Captures
from quire.prefix.forecast import Origin
from quire.prefix.hit import Turn
from quire.prefix.index import PrefixIndex


class Marks:
    """By row."""

    def __init__(self, index: PrefixIndex, captures: Captures) -> None:
        self._index, self._captures = index, captures
        self.units: dict[int, list[int]] = {}
        """Units after which a row will keep a boundary, the nearest last."""
        self._points: dict[int, list[int]] = {}
        """Tokens after which it will, the nearest last."""
        self.leaves_spares: dict[int, bool] = {}
        """Whether the index keeps spares of a row: what its prompt leaves between boundaries."""

    def enter(self, row: int, units: list[int], points: Iterable[int], computed: int) -> None:
        """A row starts after `computed` tokens."""
        index = self._index
        self.units[row] = units
        self.leaves_spares[row] = bool(units) and index.spares.are_wanted(index.arrivals)
        ahead = {point for point in points if point > computed} if index.coverage.has_boundaries else ()
        self._points[row] = sorted(ahead, reverse=True)

    def add(self, row: int, units: int) -> None:
        self.units[row] = sorted([*self.units[row], units], reverse=True)

    def skip(self, row: int, computed: int) -> None:
        """A load provides the row's tokens up to `computed`: no boundaries are kept before that."""
        self.units[row] = [mark for mark in self.units[row] if mark > computed // self._index.unit]
        self._points[row] = [point for point in self._points[row] if point > computed]

    def leave(self, row: int) -> None:
        del self.units[row], self._points[row], self.leaves_spares[row]

    # ── states ────────────────────────────────────────────────────────────

    def captures(self, row: int, computed: int) -> Iterator[int]:
        """Tokens after which states are captured, after `computed`: at boundaries, and as spares between them."""
        unit, units = self._index.unit, self.units[row]
        places = {place for place in (*self._points[row], *(mark * unit for mark in units)) if place > computed}
        if units:
            each = unit * (self._index.coverage.spare_units if self.leaves_spares[row] else units[0] + 1)
            places.update(range(computed // each * each + each, units[0] * unit, each))
        yield from sorted(places)

    def is_spare(self, row: int, tokens: int) -> bool:
        return tokens not in self._points[row] and tokens // self._index.unit not in self.units[row]

    # ── points ────────────────────────────────────────────────────────────

    def next_place(self, row: int, unit_end: int) -> int:
        """After how many settled tokens the row is looked at again: at the end of a unit, or at a point before it."""
        return min([unit_end, *self._points[row][-1:]])

    def pop_points(self, row: int, settled: int) -> list[int]:
        """Points that have settled."""
        points, found = self._points[row], []
        while points and points[-1] <= settled:
            found.append(points.pop())
        return found

    def keep_point(self, row: int, turn: Turn) -> bool:
        """Keeps a boundary where the turn ends; the row goes on, and its live set still includes the pages. False: a
        state was to be captured there, and there was no room."""
        index, captures = self._index, self._captures
        chain = index.remember(row, turn.keys, turn.units, turn.known, turn.line)
        states = captures.take_settled(row, turn.units * index.unit + len(turn.rest))
        is_there = not len(turn.rest) and index.coverage.has_state(chain.item(-1))
        is_kept = states is not None or is_there or not index.coverage.has_states
        if is_kept:
            chain = index.keep_rest(row, turn, chain)
            captures.give(states, chain.item(-1))
            index.keep_boundary(row, chain, Origin.TURN, turn.line)
        if len(chain):
            index.settle(chain)
        return is_kept
