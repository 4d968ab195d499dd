"""What scheduler and runner exchange: a step and its result, as plain arrays."""

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
"""In a step's tokens: the token that the previous step sampled for this row, which only the runner knows."""
DRAFTED = -2
"""In a step's tokens: a draft token that the runner fills in, with a draft model."""


@dataclass(frozen=True, slots=True, eq=False)
class TableView:
    """Page addresses of one kind, by row. The arrays are updated later: a runner copies at launch what it needs.

    Logical page l of a row is in column l; after the sinks' columns they wrap round, because windows give pages back.
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
    """A recurrent state that the step copies to other pages: that of a row after its first `tokens` tokens."""

    entry: int
    """Which of the step's rows: a place in `rows`."""
    tokens: int
    """starts[entry] < tokens <= starts[entry] + counts[entry] (without drafts)."""
    stage: int
    kind: int
    pages: Ints
    """One for each group of the kind; written by this step, not read before the step has settled."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One batch: row i computes tokens [starts[i], starts[i] + counts[i]) of its request.

    There are no prefill or decode phases: each row computes its known tokens that are not computed yet.
    """

    number: int
    rows: Ints
    starts: Ints
    counts: Ints
    samples: npt.NDArray[np.bool_]
    """Rows that compute their last known token, and so sample a new one."""
    epochs: Ints
    """A counter of the requests that had each entry's row: a result for an earlier one is stale."""
    token_ids: npt.NDArray[np.int32]
    """What the rows compute, one row after another."""
    entered: tuple[tuple[int, Request, npt.NDArray[np.int32]], ...] = ()
    """Rows that got another request since the previous step: (row, request, tokens it has generated so far)."""
    tables: tuple[tuple[TableView, ...], ...] = ()
    """By stage that keeps anything, by kind."""
    copies: tuple[tuple[int, int, Ints, Ints], ...] = ()
    """(stage, kind, source pages, target pages), to be copied before the step computes, in order."""
    loads: tuple[tuple[int, int], ...] = ()
    """(number of the load, row): the staged bytes are copied into the row's pages, after the copies."""
    clears: tuple[tuple[int, int, Ints], ...] = ()
    """(stage, kind, pages) to be zeroed after the copies: new recurrent states."""
    drafts: Ints | None = None
    """How many of each row's last tokens are draft tokens; None: the step has none. A row with drafts samples after its
    last known token and after each draft. Its state after draft i goes to page i; page 0 is the state before them."""
    stores: tuple[Store, ...] = ()
    """Records to copy to a tier, done among the copies, so that each page is read before it is overwritten.

    A step may have stores and no rows, if there is nothing to compute.
    """
    captures: tuple[Capture, ...] = ()
    """Recurrent states that the step also writes to pages of the cache. A row may have several, in ascending order of
    tokens, and at most one per kind and token."""

    @property
    def tokens(self) -> int:
        return len(self.token_ids)

    def sample_places(self) -> tuple[Ints, Ints, Ints]:
        """Where rows sample, row after row: (entry of the step, place in its tokens, position of the sampled token)."""
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
    """How many tokens each of these rows has: one more than its accepted drafts. None: one each."""
    logprobs: StepLogprobs | None = None
    """Of rows that request them."""


class Runner(Protocol):
    """Turns steps into tokens: a model on a device, a cost model, a test's double. Steps run in the order of launch."""

    def launch(self, step: Step) -> None: ...

    def collect(self) -> StepResult:
        """The result of the oldest step in flight."""
