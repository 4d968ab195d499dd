"""Prefixes that were evicted, by the keys of their units: what would have been found is learned from too.

evicted    ├─ unit ─┼─ unit ─┼─ unit ─┤ ◆        all its units remember the one record of why and when it went
prompt     ├─ unit ─┼─ unit ─┼─ other …          shares two units with it
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

FEW = 65_536
"""Units that are remembered in any case; beyond them, `TIMES` as many as the cache holds."""
TIMES = 4


@dataclass(slots=True, eq=False)
class Ghost:
    kind: int
    """Its class (`reuse_times.class_of`)."""
    used: float
    """When it was used last."""
    uses: int
    line: int
    end: bytes
    """Key of its last unit; empty: a hit may end anywhere in it."""
    arrivals: int
    """Requests that had arrived when it was evicted."""
    is_counted: bool = False
    """A later use was counted, or it was given up."""


class Ghosts:
    def __init__(self, gone: Callable[[Ghost], None]) -> None:
        """`gone`: called with each that is forgotten without having been asked for."""
        self._gone = gone
        self._units: dict[bytes, Ghost] = {}

    def __len__(self) -> int:
        return len(self._units)

    def add(self, keys: Sequence[bytes], ghost: Ghost) -> None:
        for key in keys:
            self._units.pop(key, None)  # what was evicted last is remembered longest
        self._units.update(dict.fromkeys(keys, ghost))

    def limit(self, cached_units: int) -> None:
        """Forgets the oldest beyond what is worth remembering."""
        most = max(FEW, TIMES * cached_units)
        while len(self._units) > most:
            self._give_up(self._units.pop(next(iter(self._units))))

    def _give_up(self, ghost: Ghost) -> None:
        if not ghost.is_counted:
            ghost.is_counted = True
            self._gone(ghost)

    def depth(self, keys: Sequence[bytes], known: int) -> int:
        """How many units of a prompt, `known` of them in the cache, were computed before as far as is remembered."""
        while known < len(keys) and keys[known] in self._units:
            known += 1
        return known

    def met(self, keys: Sequence[bytes], begin: int, end: int) -> Iterator[tuple[int, Ghost]]:
        """Those among units [begin, end) of a prompt, the deepest first, each once: with the place of its last unit
        there."""
        last = None
        for place in range(end - 1, begin - 1, -1):
            ghost = self._units.get(keys[place])
            if ghost is not None and ghost is not last:
                last = ghost
                yield place, ghost

    def at(self, key: bytes) -> Ghost | None:
        return self._units.get(key)

    def forget(self, scope: bytes) -> None:
        """Those of a scope: their keys begin with it."""
        for key in [key for key in self._units if key.startswith(scope)]:
            del self._units[key]

    def live(self) -> list[Ghost]:
        """Those that may still be asked for, each once."""
        return [ghost for ghost in dict.fromkeys(self._units.values()) if not ghost.is_counted]
