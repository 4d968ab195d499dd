"""Speculation: who guesses tokens, and which guesses come true.

    known  … 7 3 9 │ 4 4 8     three drafts behind the last known token: one step computes all four
    sampled        4 4 6       what the model puts out behind 9, behind 4 and behind the second 4
                   ✓ ✓ ✗       two drafts came true, and the token behind them is there as well: three new tokens

Every token is the one that the model would have put out alone: a draft is taken only where the sample is equal.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from quire.core.request import Tokens
from quire.core.step import DRAFTED, Ints, Step, StepResult


class Drafter(Protocol):
    """Guesses what comes next, by row. Wrong guesses cost time and change nothing else."""

    def enter(self, row: int, tokens: Tokens) -> None:
        """The row belongs to someone else now, who has these tokens."""
        ...

    def extend(self, row: int, tokens: Tokens) -> None:
        """What came since."""
        ...

    def propose(self, row: int, count: int) -> Tokens:
        """At most so many tokens that may come next; none: no idea."""
        ...


class LeftOpen:
    """Guesses nothing itself: leaves places for a runner that has a draft model."""

    def enter(self, row: int, tokens: Tokens) -> None:
        del row, tokens

    def extend(self, row: int, tokens: Tokens) -> None:
        del row, tokens

    def propose(self, row: int, count: int) -> Tokens:
        del row
        return np.full(count, DRAFTED, dtype=np.int32)


def verified(step: Step, sampled: Ints) -> StepResult:
    """Of each row's samples (in the order of `step.sampled`) those up to the first that is not its next draft."""
    if step.drafts is None:
        return StepResult(step.number, sampled)
    _, places, _ = step.sampled()
    each = step.drafts[step.samples] + 1
    ends = np.cumsum(each)
    is_right = sampled == step.token_ids[np.minimum(places + 1, step.tokens - 1)]
    is_right[ends - 1] = False  # behind the last draft there is none to compare
    wrong = np.flatnonzero(~is_right)
    counts = wrong[np.searchsorted(wrong, ends - each)] - (ends - each) + 1
    number = np.arange(len(sampled)) - np.repeat(ends - each, each)
    return StepResult(step.number, sampled[number < np.repeat(counts, each)], counts)
