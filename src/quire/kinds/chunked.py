"""chunked: chunked-local attention. A token sees the tokens before it in its own chunk of C, and itself.

    |··········|··········|▓▓▓▓▒               live(c) = [⌊c/C⌋·C, c)
    └─── C ────┘

At a chunk's first token everything before it is dropped. C need not be a multiple of the page: then a page may hold the
end of one chunk and the start of the next.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from quire.core.errors import PlanError
from quire.kinds.base import Counts, Interval, Keeps, Kind

LONGEST_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Chunked(Kind):
    """Keeps the tokens of the current chunk."""

    chunk: int
    kind: ClassVar[str] = "chunked"
    keeps: ClassVar[Keeps] = Keeps.TAIL

    def __post_init__(self) -> None:
        if not 1 <= self.chunk <= LONGEST_CHUNK:
            raise PlanError(f"a chunk of {self.chunk:,} tokens is out of range: choose 1 to {LONGEST_CHUNK:,}")

    @property
    def name(self) -> str:
        return f"chunked-{self.chunk}"

    @property
    def mask_bounds(self) -> Mapping[str, int]:
        return {"chunk": self.chunk}

    def live(self, settled: int) -> tuple[Interval, ...]:
        return ((settled // self.chunk * self.chunk, settled),)

    def first_live(self, settled: Counts) -> Counts:
        return settled // self.chunk * self.chunk

    def units(self, length: Counts) -> Counts:
        return (length - 1) % self.chunk + 1

    def hit_needs(self, boundary: int) -> tuple[Interval, ...]:
        return self.live(boundary)

    def period_tokens(self, page_tokens: int) -> int:
        return math.lcm(self.chunk, page_tokens)

    @property
    def fixed_units(self) -> int:
        return self.chunk
