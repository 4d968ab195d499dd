"""In which order prefixes are forgotten. A chain's end gets a rank whenever it is used; the lowest goes first.

    least recently used    rank = time
    by value               rank = floor + worth × (proof + luck)

*Worth* is tokens saved per byte. *Proof* is how often it was found again. *Luck* is drawn from the key, so that
sessions which come round in turn and do not all fit lose some of them for good and keep the others, instead of losing
each just before it is needed. The *floor* rises to the rank of what was forgotten last: what nobody asks for sinks.
"""

from __future__ import annotations

import math
from typing import Protocol

from quire.core.tier import SCOPE_BYTES

MOST_PROOF = 4
"""Hits that count: what was popular once does not stay for ever."""
LUCK = 0.25
"""How much chance weighs beside one proven hit. Drawn from an exponential, so that it has no memory."""


class Order(Protocol):
    def rank(self, key: bytes, hits: int, worth: float) -> float:
        """Of something used now."""
        ...

    def forgot(self, rank: float) -> None: ...


class LeastRecentlyUsed:
    def __init__(self) -> None:
        self._now = 0

    def rank(self, key: bytes, hits: int, worth: float) -> float:
        del key, hits, worth
        self._now += 1
        return float(self._now)

    def forgot(self, rank: float) -> None:
        del rank


class ByValue:
    def __init__(self) -> None:
        self._floor = 0.0

    def rank(self, key: bytes, hits: int, worth: float) -> float:
        chance = (int.from_bytes(key[SCOPE_BYTES : SCOPE_BYTES + 6], "little") + 1) / (1 << 48)
        return self._floor + worth * (min(hits, MOST_PROOF) - 1 - LUCK * math.log(chance))

    def forgot(self, rank: float) -> None:
        self._floor = max(self._floor, rank)
