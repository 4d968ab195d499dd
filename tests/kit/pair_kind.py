"""A kind that the package does not know: a token sees its own chunk of C tokens, and the chunk before it.

    |··········|▓▓▓▓▓▓▓▓▓▓|▓▓▓▓▒               live(c) = [max(0, ⌊c/C⌋ − 1)·C, c)
               └─── C ────┘

Its rules stand here, its definition for the checker below, without a look at the rules. Nothing else knows of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

import numpy as np

from quire.check.definitions import DEFINITIONS, Definition, Run, Sizes
from quire.kinds import KINDS, Counts, Interval, Keeps, Kind, counts


@dataclass(frozen=True, slots=True)
class Pair(Kind):
    half: int
    """Tokens of a chunk: a number that no other kind has."""
    kind: ClassVar[str] = "pair"
    keeps: ClassVar[Keeps] = Keeps.TAIL

    @property
    def name(self) -> str:
        return f"pair-{self.half}"

    def first_live(self, settled: Counts) -> Counts:
        return counts(np.maximum(0, (settled // self.half - 1) * self.half))

    def live(self, settled: int) -> tuple[Interval, ...]:
        return ((int(self.first_live(counts(settled))), settled),)

    def units(self, length: Counts) -> Counts:
        return counts(np.minimum(length, (length - 1) % self.half + 1 + self.half))

    def hit_needs(self, boundary: int) -> tuple[Interval, ...]:
        return self.live(boundary)

    def period_tokens(self, page_tokens: int) -> int:
        return math.lcm(self.half, page_tokens)

    @property
    def fixed_units(self) -> int:
        return 2 * self.half


def seen(numbers: Mapping[str, Any], first: int, end: int) -> tuple[Run, ...]:
    """From the definition: the first query's chunk, and the one before it."""
    chunk = first // numbers["half"]
    return ((0 if chunk == 0 else (chunk - 1) * numbers["half"], end),)


def _random(random: Random, sizes: Sizes) -> dict[str, int]:
    return {"half": random.randint(1, sizes.chunk // 2)}


@contextmanager
def known(kind: type[Kind] = Pair, only: tuple[str, ...] = ()) -> Iterator[None]:
    """The package knows the kind meanwhile. `only`: and, in addition to it, these kinds alone."""
    before, definitions = dict(KINDS), dict(DEFINITIONS)
    for name in [name for name in KINDS if only and name not in only]:
        del KINDS[name]
    KINDS["pair"], DEFINITIONS["pair"] = kind, Definition(seen, {"half": 2}, _random)
    try:
        yield
    finally:
        for table, own in ((KINDS, before), (DEFINITIONS, definitions)):
            table.clear()
            table.update(own)
