"""Where prompts part: known from prompts that wait and run, before any of them is computed.

r0  A─B─C─D─E        r1 shares A, B, C with r0: the first of them to compute C keeps a boundary behind it,
r1  A─B─C─F          and the others wait until it is there instead of computing it beside
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from quire.core.search import greatest

MOST_WANTED = 65_536
"""Boundaries asked for and not computed yet; beyond them the oldest wishes are forgotten."""


class Junctions:
    def __init__(self) -> None:
        self._prompts: dict[bytes, list[tuple[bytes, ...]]] = {}
        """By their first keys: prompts that were accepted and have not ended, sorted, so that those which share most
        lie side by side."""
        self._next: dict[bytes, int] = {}
        """By the key of a unit: the row that computes it next."""
        self.ahead: dict[int, tuple[Sequence[bytes], int, int]] = {}
        """Running rows that have units of their prompts to compute: keys, units done, units in all."""
        self.wanted: dict[bytes, None] = {}
        """Keys behind which someone will want to go on."""

    def add(self, keys: Sequence[bytes]) -> int:
        """Counts a prompt in; returns how many of its units another one has too."""
        if not keys:
            return 0
        own, alike = tuple(keys), self._prompts.setdefault(keys[0], [])
        place = bisect.bisect_left(alike, own)
        shared = max([_shared(own, other) for other in alike[max(0, place - 1) : place + 1]], default=0)
        alike.insert(place, own)
        return shared

    def remove(self, keys: Sequence[bytes]) -> None:
        if not keys:
            return
        alike = self._prompts[keys[0]]
        del alike[bisect.bisect_left(alike, tuple(keys))]
        if not alike:
            del self._prompts[keys[0]]

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
        return row, _shared(keys[:units], others, known)


def _shared(some: Sequence[bytes], others: Sequence[bytes], known: int = 0) -> int:
    """How many keys two prompts share, at least the first `known`: what follows a difference differs."""
    return greatest(known, min(len(some), len(others)), lambda count: some[count - 1] == others[count - 1])
