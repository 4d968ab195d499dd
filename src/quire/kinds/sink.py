"""sink: a sliding window that also keeps the first S tokens.

    ▓▓▓▓·············▓▓▓▓▓▓▓▓▓▓▓▒            live(c) = [0, min(S, c)) ∪ [max(0, c − W + 1), c)
    └S─┘             └── W − 1 ─┘            a page touched by both counts once

Learned sink *logits* (gpt-oss) keep no token: they are a kernel parameter, not this kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from quire.core.errors import PlanError
from quire.core.units import ceil_div
from quire.kinds.base import Counts, Interval, Keeps, Kind, counts


@dataclass(frozen=True, slots=True)
class Sink(Kind):
    """Keeps the first tokens and a window of the newest."""

    sinks: int
    window: int
    kind: ClassVar[str] = "sink"
    keeps: ClassVar[Keeps] = Keeps.TAIL

    def __post_init__(self) -> None:
        if self.sinks < 1 or self.window < 1:
            raise PlanError(f"sinks {self.sinks} and window {self.window} must both be at least 1 token")

    @property
    def name(self) -> str:
        return f"sink-{self.sinks}-{self.window}"

    @property
    def mask_bounds(self) -> Mapping[str, int]:
        return {"window": self.window, "sinks": self.sinks}

    def live(self, settled: int) -> tuple[Interval, ...]:
        first = max(0, settled - self.window + 1)
        sinks = min(self.sinks, settled)
        return ((0, settled),) if first <= sinks else ((0, sinks), (first, settled))

    def first_live(self, settled: Counts) -> Counts:
        return counts(np.maximum(0, settled - self.window + 1))

    def sees(self, query: Counts, token: Counts) -> npt.NDArray[np.bool_]:
        in_window = (token >= self.first_live(query)) | (token < self.sinks)
        return (token <= query) & in_window

    def sink_pages(self, page_tokens: int) -> int:
        return ceil_div(self.sinks, page_tokens)

    def _sinks_held(self, settled: Counts, page_tokens: int) -> Counts:
        return counts(-(-np.minimum(self.sinks, settled) // page_tokens))

    def kept_pages(self, settled: Counts, page_tokens: int) -> Counts:
        """A sink page that the run reaches as well counts there."""
        return counts(np.minimum(self._sinks_held(settled, page_tokens), self.first_page(settled, page_tokens)))

    def pages(self, settled: Counts, new: Counts, ahead: Counts, page_tokens: int) -> Counts:
        has_run = self.first_live(settled) < settled + new + ahead
        both = Kind.pages(self, settled, new, ahead, page_tokens)
        return counts(np.where(has_run, both, self._sinks_held(settled, page_tokens)))

    def units(self, length: Counts) -> Counts:
        return counts(np.minimum(length, self.window + np.minimum(self.sinks, length - 1)))

    def hit_needs(self, boundary: int) -> tuple[Interval, ...]:
        return self.live(boundary)

    @property
    def fixed_units(self) -> int:
        return self.sinks + self.window
