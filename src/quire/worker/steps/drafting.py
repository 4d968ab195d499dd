"""Draft tokens in a step: placeholders for those of a draft model, and which of them are accepted.

    known  … 7 3 9 │ 4 4 8     three draft tokens after the last known token: one step computes all four
    sampled        4 4 6       the model's samples after 9, after 4 and after the second 4
                   ✓ ✓ ✗       two drafts are accepted, and the sample after them is valid too: three new tokens

Every token is the one that the model would have generated alone: a draft is accepted only if it equals the sample.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from quire.core.request import Tokens
from quire.core.step import DRAFTED, Ints, Step, StepResult


class DeferredDrafter:
    """Proposes placeholders, which a runner with a draft model replaces by draft tokens."""

    def enter(self, row: int, tokens: Tokens, scope: str) -> None:
        del row, tokens, scope

    def extend(self, rows: Ints, tokens: Tokens) -> None:
        del rows, tokens

    def propose(self, rows: Ints, counts: Ints, step_tokens: int) -> Mapping[int, Tokens]:
        del rows, step_tokens
        return {place: np.full(count, DRAFTED, dtype=np.int32) for place, count in enumerate(counts.tolist())}


def verify_drafts(step: Step, sampled: Ints) -> StepResult:
    """Each row's samples (in the order of `step.sample_places`) up to the first that differs from its next draft."""
    if step.drafts is None:
        return StepResult(step.number, sampled)
    _, places, _ = step.sample_places()
    each = step.drafts[step.samples] + 1
    ends = np.cumsum(each)
    is_right = sampled == step.token_ids[np.minimum(places + 1, step.tokens - 1)]
    is_right[ends - 1] = False  # after the last draft there is none to compare
    wrong = np.flatnonzero(~is_right)
    counts = wrong[np.searchsorted(wrong, ends - each)] - (ends - each) + 1
    number = np.arange(len(sampled)) - np.repeat(ends - each, each)
    return StepResult(step.number, sampled[number < np.repeat(counts, each)], counts)
