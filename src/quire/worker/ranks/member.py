"""A process of a group: its share of the model, and how it reaches the others."""

from __future__ import annotations

from dataclasses import dataclass

from quire.worker.model.collective import ALONE, NO_LINE, Collective, Line
from quire.worker.ranks.share import WHOLE, Share


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    share: Share = WHOLE
    collective: Collective = ALONE
    """With the ranks of its stage."""
    line: Line = NO_LINE
    """With the same rank of other stages."""


NO_OTHERS = Member()
