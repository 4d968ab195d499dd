"""Planted bugs of pipelines: steps in flight that share rows, leave stages idle or have no part for the elder."""

from __future__ import annotations

from typing import Any

import numpy as np

from quire.check.mutations.base import Mutation, Original, number
from quire.engine.engine import Engine
from quire.scheduler import rows
from quire.scheduler.rows import Rows


def _all_with(left: int) -> Any:
    """Rows with so many known tokens to compute get all that a lone step would have."""

    def make(divided: Original) -> Original:
        def wrong(self: Rows, some: Any, remaining: Any) -> Any:
            is_whole = self.known[some] - self.computed[some] == left
            return np.where(is_whole, remaining, divided(self, some, remaining))

        return wrong

    return make


def _from_the_end(divided: Original) -> Original:
    return lambda self, some, remaining: divided(self, some[::-1], remaining[::-1])[::-1]


def _one_at_a_time(step: Original) -> Original:
    def wrong(self: Engine) -> Any:
        self.overlap = 1
        return step(self)

    return wrong


STAGES: dict[str, Mutation] = {
    "row-in-two-steps": Mutation(
        "a row of a pipeline goes on before its token was sampled", Rows, "_divided", _all_with(0)
    ),
    "rows-not-divided": Mutation(
        "one step in flight on a pipeline has all rows that generate", Rows, "_divided", _all_with(1)
    ),
    "prompt-not-divided": Mutation(
        "one step in flight on a pipeline takes as much of a prompt as it may", rows, "LEAST_CHUNK", number(1)
    ),
    "elder-in-the-last-part": Mutation(
        "steps in flight on a pipeline divide the last rows first", Rows, "_divided", _from_the_end
    ),
    "stages-idle": Mutation("a pipeline has one step in flight", Engine, "step", _one_at_a_time),
}
