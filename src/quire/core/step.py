"""What crosses between scheduler and runner: a step and its result, as plain arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from quire.core.logprobs import StepLogprobs
from quire.core.request import Request
from quire.core.tier import Store

Ints = npt.NDArray[np.int64]
SAMPLED = -1
"""In a step's tokens: the one that the step before yielded for this row, which the runner alone knows."""
DRAFTED = -2
"""In a step's tokens: a guess that the runner makes, with a draft model."""


@dataclass(frozen=True, slots=True, eq=False)
class TableView:
    """Where the pages of one kind lie, by row. The arrays live on: whoever needs them later copies them at launch.

    Logical page l of a row lies in column l; behind the sinks' columns they wrap round, for windows give pages back.
    """

    addresses: npt.NDArray[np.int32]
    """(row, group, column): in granules of 256 bytes."""
    sink_columns: int

    def column(self, logical: Ints) -> Ints:
        ring = self.addresses.shape[2] - self.sink_columns
        if not self.sink_columns:
            return np.asarray(logical % ring, dtype=np.int64)
        return np.where(logical < self.sink_columns, logical, self.sink_columns + (logical - self.sink_columns) % ring)


@dataclass(frozen=True, slots=True, eq=False)
class Capture:
    """A recurrent state to keep in passing: that of a row after its first `tokens` tokens."""

    entry: int
    """Which of the step's rows: a place in `rows`."""
    tokens: int
    """starts[entry] < tokens <= starts[entry] + counts[entry] (without drafts)."""
    stage: int
    kind: int
    pages: Ints
    """One for each group of the kind; written by this step, read by nobody before it has settled."""


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
    token_ids: npt.NDArray[np.int32]
    """What the rows compute, one row after another."""
    entered: tuple[tuple[int, Request, npt.NDArray[np.int32]], ...] = ()
    """Rows that belong to someone else since the step before: to whom, and what that one has put out already."""
    tables: tuple[tuple[TableView, ...], ...] = ()
    """By stage that keeps anything, by kind."""
    copies: tuple[tuple[int, int, Ints, Ints], ...] = ()
    """(stage, kind, source pages, target pages), to be done before the step, in order."""
    loads: tuple[tuple[int, int], ...] = ()
    """(number of the load, row): what it staged goes into the row's pages, after the copies."""
    clears: tuple[tuple[int, int, Ints], ...] = ()
    """(stage, kind, pages) to be zeroed after the copies: states that nothing was written to yet."""
    drafts: Ints | None = None
    """How many of each row's tokens, the last ones, are guesses; None: nobody guesses. A row that does samples behind
    the last token it knows and behind each guess. Its state after guess i goes to page i, page 0 knows of none."""
    stores: tuple[Store, ...] = ()
    """What goes out to a tier, among the copies, so that each page is read before anything else is written there.

    A step may have stores and no rows: there was nothing to compute.
    """
    captures: tuple[Capture, ...] = ()
    """Recurrent states that the step also writes to pages of the cache. A row may have several, in ascending order of
    tokens, and at most one per kind and token."""

    @property
    def tokens(self) -> int:
        return len(self.token_ids)

    def sampled(self) -> tuple[Ints, Ints, Ints]:
        """Where rows sample, row after row: (entry of the step, place in its tokens, position of the token to come)."""
        each = self.samples.astype(np.int64) if self.drafts is None else self.samples * (self.drafts + 1)
        entries = np.repeat(np.arange(len(each)), each)
        before_last = np.cumsum(each)[entries] - 1 - np.arange(len(entries))
        return entries, np.cumsum(self.counts)[entries] - 1 - before_last, self.ends[entries] - before_last

    @property
    def ends(self) -> Ints:
        return self.starts + self.counts


@dataclass(frozen=True, slots=True, eq=False)
class StepResult:
    """New tokens of the rows that sample, in the step's order."""

    number: int
    tokens: Ints
    counts: Ints | None = None
    """How many each of these rows has: one more than the guesses that came true. None: one each."""
    logprobs: StepLogprobs | None = None
    """Of rows that asked for them."""


class Runner(Protocol):
    """Turns steps into tokens: a model on a device, a cost model, a test's double. Steps run in the order of launch."""

    def launch(self, step: Step) -> None: ...

    def collect(self) -> StepResult:
        """The result of the oldest step in flight."""
        ...
