"""Log-probabilities of tokens, as the model computes them: before temperature, penalties and masks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Logprob:
    """The log-probability of one token at its position."""

    token: int
    value: float
    rank: int
    """1: no other token was likelier there."""
    top: tuple[tuple[int, float], ...]
    """(token, log-probability) of the likeliest tokens, as many as were requested, the likeliest first."""


@dataclass(frozen=True, slots=True, eq=False)
class StepLogprobs:
    """Log-probabilities from one step, for rows that request them; all columns have one place per token."""

    entries: Ints
    """Which of the step's rows."""
    positions: Ints
    """The token's place in its request: the first output has the prompt's length."""
    tokens: Ints
    values: Floats
    ranks: Ints
    top_ids: Ints
    """(place, rank): as many as the most demanding row wants."""
    top_values: Floats

    def at(self, place: int, most: int) -> Logprob:
        top = zip(self.top_ids[place, :most].tolist(), self.top_values[place, :most].tolist(), strict=True)
        return Logprob(int(self.tokens[place]), float(self.values[place]), int(self.ranks[place]), tuple(top))
