"""cross: attention to an encoder's output. Written once, read by every token, as long as the request lives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from quire.core.errors import PlanError
from quire.core.units import ceil_div
from quire.kinds.base import Counts, Interval, Keeps, Kind


@dataclass(frozen=True, slots=True)
class Cross(Kind):
    """Keeps an encoder's output as long as the request lives."""

    encoder_tokens: int
    kind: ClassVar[str] = "cross"
    keeps: ClassVar[Keeps] = Keeps.TAIL
    holds_tokens: ClassVar[bool] = False
    is_shareable: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.encoder_tokens < 1:
            raise PlanError(f"encoder_tokens is {self.encoder_tokens}: an encoder gives at least 1")

    @property
    def name(self) -> str:
        return f"cross-{self.encoder_tokens}"

    def live(self, settled: int) -> tuple[Interval, ...]:
        """In tokens of the encoder: all of them, from the first step on."""
        del settled
        return ((0, self.encoder_tokens),)

    def first_live(self, settled: Counts) -> Counts:
        return np.zeros_like(settled)

    def end_page(self, end: Counts, ahead: Counts, page_tokens: int) -> Counts:
        del ahead
        return np.full_like(end, ceil_div(self.encoder_tokens, page_tokens))

    def pages(self, settled: Counts, new: Counts, ahead: Counts, page_tokens: int) -> Counts:
        return self.end_page(settled + new + ahead, ahead, page_tokens)

    def units(self, length: Counts) -> Counts:
        return np.full_like(length, self.encoder_tokens)

    def hit_needs(self, boundary: int) -> tuple[Interval, ...]:
        return self.live(boundary)

    def period_tokens(self, page_tokens: int) -> int:
        del page_tokens
        return 1

    @property
    def fixed_units(self) -> int:
        return self.encoder_tokens
