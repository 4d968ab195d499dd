"""A step, spelled out for attention: where new tokens go, and which tokens each row reads.

    row 0   ├── settled ──┼ new ┤         queries are the new tokens; the kind defines how far back they see
    row 1   ├─ settled ─┼n┤
    packed  [ new of row 0 | new of row 1 | … ]

Rows with equal token counts that read similar lengths are read together, padded to the longest of them. States of rows
with equal token counts are read together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from quire.core.step import Step, TableView
from quire.kinds import Keeps, Kind, counts
from quire.plan.plan import KindPlan, StagePlan
from quire.worker.pages.arena import Cut, cut_of
from quire.worker.pages.captures import KindCaptures, captures_of
from quire.worker.pages.uploads import DirectUpload, Upload

SHORT_TOKENS = 64
"""Rows that read at most this many tokens are read together; beyond, rows up to the same power of two: padding less
than doubles what is read."""

Places = Mapping[Cut, torch.Tensor]
"""Where tokens lie, in the rows of every part with this cut."""


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What some rows read of one kind. All have the same number of queries and, with padding, of tokens."""

    queries: torch.Tensor
    """(row, query): places in the packed batch."""
    tokens: Places
    """(row, token); padding repeats the row's newest token, so memory that was never written is not read."""
    mask: torch.Tensor | None
    """(row, query, token): what a query sees; none where every query sees every token."""
    is_causal: bool = False
    """The mask is the plain causal one: rows at their first token, of a kind that still sees all of them."""


@dataclass(frozen=True, slots=True, eq=False)
class StateGroup:
    """Rows with equal counts of tokens and drafts and the same captures, and their states."""

    queries: torch.Tensor
    """(row, query): places in the packed batch."""
    pages: torch.Tensor
    """(group, row): addresses of the states to start from."""
    writes: tuple[tuple[int, torch.Tensor], ...]
    """(tokens, pages): where the state after that many of the new tokens goes, in ascending order of tokens."""


@dataclass(frozen=True, slots=True, eq=False)
class KindBatch:
    """One kind in one step: `readings` of kinds that keep tokens, `state_groups` of states."""

    new: Places
    """(token,): where new tokens go."""
    readings: tuple[Reading, ...] = ()
    state_groups: tuple[StateGroup, ...] = ()
    kernel: object = None
    """What a backend other than the reference prepared instead."""


@dataclass(frozen=True, slots=True, eq=False)
class StepBatch:
    """All kinds of a stage in one step, and how the packed tokens are cut into rows."""

    kinds: tuple[KindBatch, ...]
    positions: torch.Tensor
    starts: np.ndarray
    counts: np.ndarray


@dataclass(frozen=True, slots=True)
class Padding:
    """Rows after a step's own: they bring a recorded step to the row count of its recording, or a single token to two.
    All that such a row reads and writes lies in one spare page."""

    rows: int
    """Rows of the step, without padding."""
    address: int
    """Address of the spare page."""
    is_split: bool | None
    """Whether rows' tokens may be cut into pieces, which is another recording. None: the step is not recorded."""


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A step's new tokens, one row after another."""

    step: Step
    index: np.ndarray
    """(token,): which of the step's rows each belongs to."""
    positions: np.ndarray
    begins: np.ndarray
    """(row,): where its tokens begin."""
    upload: Upload
    padding: Padding | None = None
    captures: KindCaptures | None = None
    """Captures of the kind that is being prepared."""

    def addresses(self, table: TableView, columns: int) -> np.ndarray:
        """(row, group, column) of the step's rows."""
        rows = self.step.rows
        if self.padding is None:
            return table.addresses[rows, :, :columns]
        own, groups = self.padding.rows, table.addresses.shape[1]
        found = np.full((len(rows), groups, columns), self.padding.address, dtype=np.int32)
        found[:own] = table.addresses[rows[:own], :, :columns]
        return found


def pack(step: Step, upload: Upload, padding: Padding | None = None) -> Packed:
    index = np.repeat(np.arange(len(step.rows)), step.counts)
    begins = np.cumsum(step.counts) - step.counts
    return Packed(step, index, step.starts[index] + np.arange(len(index)) - begins[index], begins, upload, padding)


Prepare = Callable[[KindPlan, TableView, Packed, torch.device], KindBatch]


def make_batch(
    step: Step,
    stage: StagePlan,
    tables: tuple[TableView, ...],
    device: torch.device,
    prepares: Sequence[Prepare] | None = None,
    upload: Upload | None = None,
    padding: Padding | None = None,
) -> StepBatch:
    """`prepares`: by kind, its backend's `prepare`; default: the reference's."""
    upload = upload or DirectUpload(device)
    packed = pack(step, upload, padding)
    prepares, own = prepares or [prepare] * len(tables), [packed] * len(tables)
    if step.captures:
        own = [replace(packed, captures=captures_of(step, stage, kind)) for kind in range(len(tables))]
    kinds = tuple(
        one(plan, table, part, device)
        for one, plan, table, part in zip(prepares, stage.kinds, tables, own, strict=True)
    )
    return StepBatch(kinds, upload(packed.positions), step.starts, step.counts)


def prepare(plan: KindPlan, table: TableView, packed: Packed, device: torch.device) -> KindBatch:
    """What the reference backend needs of a step."""
    del device
    if not plan.manifest:
        return KindBatch({})  # the other of two models in one pool has these layers
    step = packed.step
    if plan.kind.keeps is Keeps.STATE:
        return _states(table, packed)
    new = _places(plan, table, step.rows[packed.index], packed.positions, packed.upload)
    readings = tuple(_reading(plan, table, packed, rows) for rows in _row_groups(plan.kind, step))
    return KindBatch(new, readings)


def _places(
    plan: KindPlan, table: TableView, rows: np.ndarray, tokens: np.ndarray, upload: Upload
) -> dict[Cut, torch.Tensor]:
    """Places of tokens; `rows` and `tokens` are arrays of one shape."""
    columns, units = table.column(tokens // plan.page_tokens), tokens % plan.page_tokens
    addresses = np.moveaxis(table.addresses[rows, :, columns], -1, 0).astype(np.int64)
    cuts = {cut_of(entry) for entry in plan.manifest}
    return {cut: upload(cut.places(addresses[cut.group], units)) for cut in cuts}


def _row_groups(kind: Kind, step: Step) -> Iterator[np.ndarray]:
    """Groups of the step's rows."""
    read = step.starts + step.counts - kind.first_live(counts(step.starts))
    sizes = np.ceil(np.log2(np.maximum(read, SHORT_TOKENS)))
    keys = np.stack([step.counts, sizes])
    for key in np.unique(keys, axis=1).T:
        yield np.flatnonzero((keys == key[:, None]).all(axis=0))


def _states(table: TableView, packed: Packed) -> KindBatch:
    """A row's state is its first page, which every token rewrites; states after its drafts are in the next pages."""
    step, upload, own = packed.step, packed.upload, packed.captures
    drafts = np.zeros_like(step.counts) if step.drafts is None else step.drafts
    keys = np.stack([step.counts, drafts, *([] if own is None else [own.patterns(len(step.rows))])])
    addresses = packed.addresses(table, int(drafts.max(initial=0)) + 1).astype(np.int64)
    groups = []
    for key in np.unique(keys, axis=1).T:
        places, count, drafted = np.flatnonzero((keys == key[:, None]).all(axis=0)), int(key[0]), int(key[1])
        queries = upload(packed.begins[places][:, None] + np.arange(count))
        pages = upload(addresses[places, :, : drafted + 1].transpose(2, 1, 0))
        captures = [] if own is None else own.of_rows(places)
        writes = [(tokens, upload(found.astype(np.int64))) for tokens, found in captures]
        writes += [(count - drafted + draft, pages[draft]) for draft in range(drafted + 1)]
        groups.append(StateGroup(queries, pages[0], tuple(writes)))
    return KindBatch({}, state_groups=tuple(groups))


def _reading(plan: KindPlan, table: TableView, packed: Packed, places: np.ndarray) -> Reading:
    """Sinks, then tokens from the first that the first query sees to the last query's own."""
    step, upload = packed.step, packed.upload
    starts, count = step.starts[places], int(step.counts[places[0]])
    first = plan.kind.first_live(counts(starts))
    sinks = plan.kind.kept_pages(counts(starts), page_tokens=1)
    end = starts + count
    column = np.arange((end - first + sinks).max())
    tokens = np.where(column < sinks[:, None], column, (first - sinks)[:, None] + column)
    queries = starts[:, None] + np.arange(count)
    mask = plan.kind.sees(queries[:, :, None], tokens[:, None, :])
    tokens = np.minimum(tokens, (end - 1)[:, None])
    rows = np.broadcast_to(step.rows[places][:, None], tokens.shape)
    return Reading(
        upload(packed.begins[places][:, None] + np.arange(count)),
        _places(plan, table, rows, tokens, upload),
        None if mask.all() else upload(mask),
        mask.shape[1:] == (count, count) and bool((mask == np.tri(count, dtype=np.bool_)).all()),
    )
