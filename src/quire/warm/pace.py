"""How many tokens a chunk of warm work has, so that a request that arrives meanwhile waits no longer than a limit."""

from __future__ import annotations

AIM = 0.5
"""Chunks aim at this part of the limit: the next one follows more tokens, so it takes longer."""
MOST_GROWTH, LEAST_SHRINK = 2.0, 0.1


class Pace:
    """Follows the time that chunks take."""

    def __init__(self, limit_seconds: float, unit: int, most: int) -> None:
        """`unit`: tokens of the smallest chunk; `most`: of the largest."""
        self.limit_seconds = limit_seconds
        self._unit, self._most = unit, max(unit, most)
        self.tokens = unit

    def note(self, tokens: int, seconds: float) -> None:
        """A chunk of so many tokens took so long."""
        fits = tokens * AIM * self.limit_seconds / max(seconds, 1e-6)
        least, most = LEAST_SHRINK * self.tokens, MOST_GROWTH * self.tokens
        wanted = int(min(max(fits, least), most))
        self.tokens = min(max(wanted // self._unit * self._unit, self._unit), self._most)


class FixedPace(Pace):
    """Chunks of one size, whatever time they take: for engines on a clock of their own."""

    def __init__(self, tokens: int) -> None:
        super().__init__(1.0, tokens, tokens)

    def note(self, tokens: int, seconds: float) -> None:
        del tokens, seconds
