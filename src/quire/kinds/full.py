"""full: every token is remembered for ever.

▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▒       live(c) = [0, c)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from quire.kinds.base import Counts, Interval, Kind, counts, pages_between


@dataclass(frozen=True, slots=True)
class Full(Kind):
    kind: ClassVar[str] = "full"
    grows: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return "full"

    def live(self, settled: int) -> tuple[Interval, ...]:
        return ((0, settled),)

    def pages(self, settled: Counts, new: Counts, ahead: Counts, page_tokens: int) -> Counts:
        return pages_between(counts(0), settled + new + ahead, page_tokens)

    def units(self, length: Counts) -> Counts:
        return length

    def hit_needs(self, boundary: int) -> tuple[Interval, ...]:
        return ((0, boundary),)

    def period_tokens(self, page_tokens: int) -> int:
        del page_tokens
        return 1
