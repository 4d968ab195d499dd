"""Junctions, where prompts diverge: known from waiting and running prompts, before any of them is computed.

r0  A─B─C─D─E        r1 shares A, B, C with r0: the first of them to compute C keeps a boundary after it,
r1  A─B─C─F          and the others wait for it instead of computing the same units at the same time
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from quire.core.search import greatest

MOST_WANTED = 65_536
"""Most boundaries that are requested and not computed yet; beyond that the oldest requests are dropped."""


class Junctions:
    """Compares the prompts of accepted requests, and knows which row computes which unit next."""

    def __init__(self) -> None:
        self._prompts: dict[bytes, list[tuple[bytes, ...]]] = {}
        """By their first keys: prompts that were accepted and have not ended, sorted, so that prompts which share most
        are neighbours."""
        self._next: dict[bytes, int] = {}
        """By the key of a unit: the row that computes it next."""
        self.ahead: dict[int, tuple[Sequence[bytes], int, int]] = {}
        """Running rows that have units of their prompts to compute: keys, units done, units in all."""
        self.wanted: dict[bytes, None] = {}
        """Keys of units after which a request will want to continue."""

    def add(self, keys: Sequence[bytes]) -> int:
        """Adds a prompt; returns how many of its units another prompt has too."""
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

    def marks(self, keys: Sequence[bytes], begin: int, end: int) -> list[int]:
        """Units after which a row keeps a boundary that computes those after `begin` up to `end`: the nearest last."""
        inner = range(end - 1, begin, -1) if self.wanted else ()
        return [end, *(unit for unit in inner if keys[unit - 1] in self.wanted)] if end > begin else []

    def go_on(self, row: int, keys: Sequence[bytes], done: int, units: int) -> None:
        """A row has computed `done` units of a prompt, and is going to compute the others."""
        self.leave(row)
        if done < units:
            self._next[keys[done]] = row
            self.ahead[row] = keys, done, units

    def leave(self, row: int) -> None:
        """The row will not compute the rest of its prompt."""
        if row in self.ahead:
            keys, done, _ = self.ahead.pop(row)
            if self._next.get(keys[done]) == row:
                del self._next[keys[done]]

    def computing(self, keys: Sequence[bytes], known: int) -> tuple[int, int] | None:
        """The row that computes the unit after a prompt's first `known` ones, and how many units both share."""
        row = self._next.get(keys[known]) if known < len(keys) else None
        if row is None:
            return None
        others, _, units = self.ahead[row]
        return row, _shared(keys[:units], others, known)


def _shared(some: Sequence[bytes], others: Sequence[bytes], known: int = 0) -> int:
    """How many keys two prompts share, at least the first `known`: after the first difference all keys differ."""
    return greatest(known, min(len(some), len(others)), lambda count: some[count - 1] == others[count - 1])
