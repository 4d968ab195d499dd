"""state: a recurrent layer (Mamba, Gated DeltaNet, Kimi Delta, short convolution). One state, rewritten by every token.

    ▓▒      one page, and one more per lookahead token where a rejected draft must be undone

Checkpoints of a state for prefix reuse belong to the cache, not to a request's demand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from quire.core.errors import PlanError
from quire.kinds.base import Counts, Interval, Keeps, Kind, counts


@dataclass(frozen=True, slots=True)
class State(Kind):
    """Keeps one recurrent state."""

    rewinds: bool = True
    kind: ClassVar[str] = "state"
    keeps: ClassVar[Keeps] = Keeps.STATE
    holds_tokens: ClassVar[bool] = False

    @property
    def name(self) -> str:
        return "state" if self.rewinds else "state-forward"

    @property
    def can_rewind(self) -> bool:
        return self.rewinds

    def live(self, settled: int) -> tuple[Interval, ...]:
        """The state after the last settled token stands for everything before it."""
        return ((settled - 1, settled),) if settled else ()

    def first_live(self, settled: Counts) -> Counts:
        return 0 * settled

    def end_page(self, end: Counts, ahead: Counts, page_tokens: int) -> Counts:
        del page_tokens
        one = counts(np.ones_like(end))
        return one + ahead if self.rewinds else one

    def pages(self, settled: Counts, new: Counts, ahead: Counts, page_tokens: int) -> Counts:
        return self.end_page(settled + new, ahead, page_tokens)

    def units(self, length: Counts) -> Counts:
        return np.ones_like(length)

    def hit_needs(self, boundary: int) -> tuple[Interval, ...]:
        """A checkpoint taken exactly at the boundary."""
        return self.live(boundary)

    def period_tokens(self, page_tokens: int) -> int:
        del page_tokens
        return 1

    @property
    def fixed_units(self) -> int:
        return 1

    def units_per_page(self, page_tokens: int) -> int:
        del page_tokens
        return 1

    def page_choices(self, narrow: bool) -> tuple[int, ...]:
        """A state's page is one state: it spans no tokens of its own."""
        del narrow
        return (1,)

    def check_page(self, page_tokens: int) -> None:
        if page_tokens != 1:
            raise PlanError(f"a page of {self.name} is one state, not {page_tokens} tokens: leave its page at 1")
