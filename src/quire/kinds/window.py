"""window: sliding-window attention. A token sees itself and the W − 1 tokens before it.

    ·················▓▓▓▓▓▓▓▓▓▓▓▒            live(c) = [max(0, c − W + 1), c)
                     └── W − 1 ─┘

Also the shape of small caches of tokens that are not folded yet (DeepSeek-V4's compressors).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from quire.core.errors import PlanError
from quire.kinds.base import ATTENTION_PAGES, Counts, Interval, Keeps, Kind, counts

NONE = counts(0)
SHORT_WINDOW = 256
"""At or below this, a page of 16 tokens costs more than 6 % of the window."""
TINY_PAGES = (2, 4, 8)


@dataclass(frozen=True, slots=True)
class Window(Kind):
    """Keeps the newest tokens."""

    window: int
    kind: ClassVar[str] = "window"
    keeps: ClassVar[Keeps] = Keeps.TAIL

    def __post_init__(self) -> None:
        if self.window < 1:
            raise PlanError(f"a window of {self.window} tokens cannot see anything: it must be at least 1")

    @property
    def name(self) -> str:
        return f"window-{self.window}"

    @property
    def mask_bounds(self) -> Mapping[str, int]:
        return {"window": self.window}

    def first_live(self, settled: Counts) -> Counts:
        first: Counts = np.maximum(settled - (self.window - 1), NONE)
        return first

    def live(self, settled: int) -> tuple[Interval, ...]:
        return ((max(settled - self.window + 1, 0), settled),)

    def units(self, length: Counts) -> Counts:
        return counts(np.minimum(length, self.window))

    def hit_needs(self, boundary: int) -> tuple[Interval, ...]:
        return self.live(boundary)

    @property
    def fixed_units(self) -> int:
        return self.window

    def page_choices(self, narrow: bool) -> tuple[int, ...]:
        if not narrow or self.window > SHORT_WINDOW:
            return ATTENTION_PAGES
        return tuple(page for page in TINY_PAGES if page * 32 >= self.window) + ATTENTION_PAGES
