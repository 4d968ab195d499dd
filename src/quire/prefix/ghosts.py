"""Ghosts: records of evicted prefixes, by the keys of their units. The forecast learns from hits that they would be.

evicted    ├─ unit ─┼─ unit ─┼─ unit ─┤ ◆        one ghost for all its units: its class, and when it was used
prompt     ├─ unit ─┼─ unit ─┼─ other …          shares two units with it
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from quire.core.search import greatest

FEW = 65_536
"""Units that are remembered at least; more if `TIMES` as many as the cache holds are more."""
TIMES = 4
MOST_BACK = 64
"""How many units a search for the beginning of a ghost goes back."""


@dataclass(slots=True, eq=False)
class Ghost:
    """The record of an evicted prefix."""

    kind: int
    """Its class (`forecast.class_of`)."""
    used: float
    """When the prefix was used last."""
    uses: int
    line: int
    end: bytes
    """Key of its last unit; empty: a hit may end anywhere in it."""
    arrivals: int
    """How many requests had arrived when it was evicted."""
    is_counted: bool = False
    """Whether a later use, or the end of its observation, was counted."""


class Ghosts:
    """Finds ghosts by the key of their first unit, and by the key of their end if a hit had to end there."""

    def __init__(self, gone: Callable[[Ghost], None]) -> None:
        """`gone`: called with each ghost that is dropped before a prompt would have used it."""
        self._gone = gone
        self._runs: dict[bytes, tuple[Sequence[bytes], Ghost]] = {}
        self._ends: dict[bytes, Ghost] = {}
        self._oldest: deque[tuple[Sequence[bytes], Ghost]] = deque()
        """In the order of eviction; the same units may have been evicted again since."""
        self._units = 0
        """Units of all ghosts."""

    def __len__(self) -> int:
        return self._units

    def add(self, keys: Sequence[bytes], ghost: Ghost) -> None:
        self._runs[keys[0]] = run = (keys, ghost)
        if ghost.end:
            self._ends[ghost.end] = ghost
        self._oldest.append(run)
        self._units += len(keys)

    def limit(self, cached_units: int) -> None:
        """Drops the oldest ghosts beyond the limit."""
        most = max(FEW, TIMES * cached_units)
        while self._units > most:
            keys, ghost = self._oldest.popleft()
            self._units -= len(keys)
            self._remove(keys, ghost)
            if not ghost.is_counted:
                ghost.is_counted = True
                self._gone(ghost)

    def _remove(self, keys: Sequence[bytes], ghost: Ghost) -> None:
        if keys[0] in self._runs and self._runs[keys[0]][1] is ghost:
            del self._runs[keys[0]]
        if self._ends.get(ghost.end) is ghost:
            del self._ends[ghost.end]

    def depth(self, keys: Sequence[bytes], known: int) -> int:
        """How many units of a prompt, `known` of them cached, were computed before according to the ghosts."""
        for _, end, _ in self.along(keys, known):
            known = end
        return known

    def along(self, keys: Sequence[bytes], begin: int) -> Iterator[tuple[int, int, Ghost]]:
        """Consecutive ghosts from unit `begin` of a prompt on, each with the units [begin, end) that both share."""
        while begin < len(keys) and (found := self._run_over(keys, begin)) is not None:
            first, own, ghost = found
            most = min(len(own), len(keys) - first)
            end = first + greatest(begin + 1 - first, most, partial(_are_alike, own, keys, first))
            yield begin, end, ghost
            begin = end

    def last_end(self, keys: Sequence[bytes], begin: int, end: int) -> int | None:
        """The last of the units [begin, end) of a prompt that a ghost ended with."""
        if not self._ends:
            return None
        return next((place for place in range(end - 1, begin - 1, -1) if keys[place] in self._ends), None)

    def over(self, keys: Sequence[bytes], place: int) -> Ghost | None:
        """A ghost that contains this unit of a prompt and began at most `MOST_BACK` units before."""
        found = self._run_over(keys, place)
        return found[2] if found is not None else None

    def _run_over(self, keys: Sequence[bytes], place: int) -> tuple[int, Sequence[bytes], Ghost] | None:
        """The same, with the unit of the prompt where it begins, and all its keys."""
        for begin in range(place, max(-1, place - MOST_BACK), -1):
            if keys[begin] in self._runs:
                own, ghost = self._runs[keys[begin]]
                if len(own) > place - begin and own[place - begin] == keys[place]:
                    return begin, own, ghost
        return None

    def first(self, key: bytes) -> Ghost | None:
        """The ghost that begins with this unit."""
        return self._runs[key][1] if key in self._runs else None

    def at_end(self, key: bytes) -> Ghost | None:
        return self._ends.get(key)

    def forget(self, scope: bytes) -> None:
        """Drops the ghosts of a scope: their keys begin with it."""
        gone = [run for run in self._oldest if run[0][0].startswith(scope)]
        for keys, ghost in gone:
            self._units -= len(keys)
            self._remove(keys, ghost)
        self._oldest = deque(run for run in self._oldest if not run[0][0].startswith(scope))

    def live(self) -> list[Ghost]:
        """Ghosts whose next use is still observed."""
        return [ghost for _, ghost in self._oldest if not ghost.is_counted]


def _are_alike(some: Sequence[bytes], others: Sequence[bytes], begin: int, count: int) -> bool:
    return some[count - 1] == others[begin + count - 1]
