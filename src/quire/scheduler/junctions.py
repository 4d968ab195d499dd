"""Where prompts part: known from prompts that wait and run, before any of them is computed.

r0  A─B─C─D─E        r1 shares A, B, C with r0: the first of them to compute C keeps a boundary behind it,
r1  A─B─C─F          and the others wait until it is there instead of computing it beside
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.cache.nodes import for_each
from quire.core.search import greatest

MOST_WANTED = 65_536
"""Boundaries asked for and not computed yet; beyond them the oldest wishes are forgotten."""


class Junctions:
    def __init__(self) -> None:
        self._prompts: dict[bytes, int] = {}
        """How many prompts that were accepted and have not ended contain a key."""
        self._next: dict[bytes, int] = {}
        """By the key of a unit: the row that computes it next."""
        self.ahead: dict[int, tuple[Sequence[bytes], int, int]] = {}
        """Running rows that have units of their prompts to compute: keys, units done, units in all."""
        self.wanted: dict[bytes, None] = {}
        """Keys behind which someone will want to go on."""

    def add(self, keys: Sequence[bytes]) -> int:
        """Counts a prompt in; returns how many of its units another one has too."""
        shared = greatest(0, len(keys), lambda count: keys[count - 1] in self._prompts)
        for key in keys[:shared]:
            self._prompts[key] += 1
        self._prompts.update(dict.fromkeys(keys[shared:], 1))
        return shared

    def remove(self, keys: Sequence[bytes]) -> None:
        shared = greatest(0, len(keys), lambda count: self._prompts[keys[count - 1]] > 1)
        for key in keys[:shared]:
            self._prompts[key] -= 1
        for_each(self._prompts.pop, keys[shared:])

    def want(self, key: bytes) -> None:
        self.wanted[key] = None
        if len(self.wanted) > MOST_WANTED:
            del self.wanted[next(iter(self.wanted))]

    def go_on(self, row: int, keys: Sequence[bytes], done: int, units: int) -> None:
        """A row has `done` units of a prompt behind it, and is going to compute the others."""
        self.leave(row)
        if done < units:
            self._next[keys[done]] = row
            self.ahead[row] = keys, done, units

    def leave(self, row: int) -> None:
        """What a row has not computed of its prompt, it will not."""
        if row in self.ahead:
            keys, done, _ = self.ahead.pop(row)
            if self._next.get(keys[done]) == row:
                del self._next[keys[done]]

    def computing(self, keys: Sequence[bytes], known: int) -> tuple[int, int] | None:
        """Who computes the unit behind the first `known` ones of a prompt, and how many units it will have then."""
        row = self._next.get(keys[known]) if known < len(keys) else None
        if row is None:
            return None
        others, _, units = self.ahead[row]
        return row, greatest(known, min(units, len(keys)), lambda count: keys[count - 1] == others[count - 1])
