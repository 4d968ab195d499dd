"""Spares: pages that leave a window, and states captured, while a prompt is computed between two boundaries.

They let a later prompt continue where it diverges from this one, which is not known yet. They are kept while there is
room, or while they are worth more than what was evicted last.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.cache.memory import StageMemory
from quire.prefix.boundaries import Boundaries
from quire.prefix.coverage import Coverage
from quire.prefix.eviction import Eviction
from quire.prefix.forecast import Origin, class_of_one
from quire.prefix.nodes import Chain, Nodes

SPARES_ANYHOW = 8
"""One prompt in this many keeps its spares whatever they are worth, so that the forecast learns from them."""
FREE_SHARE = 0.1
"""While more than this part of the pool is free, all spares are kept."""
GUESSED_GAIN = 2048
"""Tokens that a hit on a spare is assumed to save, before that is known."""


def spare_class(tokens_ahead: int) -> int:
    """The class of spares, by how many tokens of their prompt follow: near its end, not far from it, elsewhere."""
    line = 0 if tokens_ahead < 512 else 1 if tokens_ahead < 2048 else 2
    return class_of_one(Origin.SPARE, line, 0)


class Spares:
    """Keeps spares in groups, and decides whether more of them are worth keeping."""

    def __init__(
        self,
        nodes: Nodes,
        boundaries: Boundaries,
        coverage: Coverage,
        eviction: Eviction,
        memories: Sequence[StageMemory],
    ) -> None:
        self._nodes, self._boundaries, self._coverage = nodes, boundaries, coverage
        self._eviction, self._memories = eviction, memories

    def keep(self, row: int, chain: Chain, first_unit: int, ahead_units: int, states: int) -> None:
        """Keeps what a prompt leaves along the chain's last units, from `first_unit` on: tails, and `states` states.
        `ahead_units`: how many whole units of the prompt follow."""
        nodes, eviction, unit = self._nodes, self._eviction, self._coverage.unit
        if not states and not any(self._coverage.tails):
            return
        marked = nodes.is_boundary[chain[:first_unit]].nonzero()[0]
        before = nodes.tokens.item(chain.item(marked.item(-1))) if len(marked) else 0
        gain = nodes.tokens.item(chain.item(-1)) - before
        worth = self._coverage.spare_worth(gain, (len(chain) - first_unit) * unit, states)
        kind = spare_class(ahead_units * unit)
        number = self._boundaries.keep_spares(row, chain, first_unit, kind, used=eviction.tick(), worth=worth)
        if number:
            eviction.push_group(number)

    def are_wanted(self, arrivals: int) -> bool:
        """Whether the prompt that starts now, the last of `arrivals`, keeps its spares."""
        if not self._eviction.forecast.learns or arrivals % SPARES_ANYHOW == 0:
            return True
        if all(memory.pool.free_sheets > FREE_SHARE * memory.stage.sheets for memory in self._memories):
            return True
        return self.are_worth_more()

    def are_worth_more(self) -> bool:
        """Whether spares are worth more than what was evicted last."""
        states = GUESSED_GAIN // (self._coverage.spare_units * self._coverage.unit)
        worth = self._coverage.spare_worth(GUESSED_GAIN, GUESSED_GAIN, states)
        return self._eviction.forecast.value(spare_class(GUESSED_GAIN), 0.0, 0.0, worth) > self._eviction.last_rank
