"""full: every token is remembered for ever.

▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▒       live(c) = [0, c)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from quire.kinds.base import Counts, Interval, Kind


@dataclass(frozen=True, slots=True)
class Full(Kind):
    kind: ClassVar[str] = "full"
    grows: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return "full"

    def live(self, settled: int) -> tuple[Interval, ...]:
        return ((0, settled),)

    def first_live(self, settled: Counts) -> Counts:
        return 0 * settled

    def units(self, length: Counts) -> Counts:
        return length

    def hit_needs(self, boundary: int) -> tuple[Interval, ...]:
        return ((0, boundary),)

    def period_tokens(self, page_tokens: int) -> int:
        del page_tokens
        return 1
