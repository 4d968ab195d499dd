"""What crosses between scheduler and runner: a step and its result, as plain arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One batch: row i computes tokens [starts[i], starts[i] + counts[i]) of its request.

    There are no prefill or decode phases: a row just catches up with the tokens it knows.
    """

    number: int
    rows: Ints
    starts: Ints
    counts: Ints
    samples: npt.NDArray[np.bool_]
    """Rows that reach the last token they know, and so yield a new one."""
    epochs: Ints
    """Which tenancy of its row each entry belongs to: a result for an earlier one is stale."""
    copies: tuple[tuple[int, int, Ints, Ints], ...] = ()
    """(stage, kind, source pages, target pages), to be done before the step, in order."""
    loads: tuple[tuple[int, int], ...] = ()
    """(number of the load, row): what it staged goes into the row's pages, after the copies."""
    clears: tuple[tuple[int, int, Ints], ...] = ()
    """(stage, kind, pages) to be zeroed after the copies: states that nothing was written to yet."""

    @property
    def tokens(self) -> int:
        return int(self.counts.sum())


@dataclass(frozen=True, slots=True, eq=False)
class StepResult:
    """One new token for each row that samples, in the step's order."""

    number: int
    tokens: Ints


class Runner(Protocol):
    """Turns steps into tokens: a model on a device, a cost model, a test's double. Steps run in the order of launch."""

    def launch(self, step: Step) -> None: ...

    def collect(self) -> StepResult:
        """The result of the oldest step in flight."""
        ...
