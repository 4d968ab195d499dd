"""Where prompts part: known from prompts that wait and run, before any of them is computed.

r0  A─B─C─D─E        r1 shares A, B, C with r0: the first of them to compute C keeps a boundary behind it,
r1  A─B─C─F          and the others wait until it is there instead of computing it beside
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

from quire.cache.nodes import for_each
from quire.core.search import greatest

MOST_WANTED = 65_536
"""Boundaries asked for and not computed yet; beyond them the oldest wishes are forgotten."""


class Junctions:
    def __init__(self) -> None:
        self._prompts: dict[bytes, int] = {}
        """How many prompts that were accepted and have not ended contain a key."""
        self._computing: dict[bytes, int] = {}
        """Keys that a running row is going to compute."""
        self.wanted: dict[bytes, None] = {}
        """Keys behind which someone will want to go on."""

    def add(self, keys: Sequence[bytes]) -> int:
        """Counts a prompt in; returns how many of its units another one has too."""
        shared = greatest(0, len(keys), lambda count: keys[count - 1] in self._prompts)
        prompts = self._prompts
        for key in keys:
            prompts[key] = prompts.get(key, 0) + 1
        return shared

    def remove(self, keys: Sequence[bytes]) -> None:
        prompts = self._prompts
        for key in keys:
            if prompts[key] > 1:
                prompts[key] -= 1
            else:
                del prompts[key]

    def want(self, key: bytes) -> None:
        self.wanted[key] = None
        if len(self.wanted) > MOST_WANTED:
            del self.wanted[next(iter(self.wanted))]

    def begin(self, keys: Sequence[bytes], row: int) -> None:
        """A row is going to compute these units."""
        self._computing.update(dict.fromkeys(keys, row))

    def done(self, keys: Sequence[bytes]) -> None:
        """They are computed, or will not be."""
        for_each(self._computing.pop, keys, repeat(None))

    def computed_by(self, key: bytes) -> int | None:
        return self._computing.get(key)
