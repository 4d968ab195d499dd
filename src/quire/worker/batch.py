"""A step, spelled out for attention: where new tokens go, and which tokens each row reads.

    row 0   ├── settled ──┼ new ┤         queries are the new tokens; a kind says how far back they see
    row 1   ├─ settled ─┼n┤
    packed  [ new of row 0 | new of row 1 | … ]

Rows that compute equally many tokens and read about as many are read together, padded to the longest of them. States of
rows that compute equally many tokens are read together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from quire.core.step import Step, TableView
from quire.kinds import Kind, counts
from quire.plan.plan import KindPlan, StagePlan
from quire.worker.arena import Cut, cut_of
from quire.worker.captures import Captured, captured
from quire.worker.uploads import Direct, Upload

SHORT_TOKENS = 64
"""Rows that read at most so many tokens are alike; beyond, those up to the same power of two: padding less than
doubles what is read."""

Places = Mapping[Cut, torch.Tensor]
"""Where tokens are, in the rows of every part that is cut so."""


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What some rows read of one kind: all have as many queries, and as many tokens with padding."""

    queries: torch.Tensor
    """(row, query): places in the packed batch."""
    tokens: Places
    """(row, token); padding repeats the row's newest, so that nothing is read which was never written."""
    mask: torch.Tensor | None
    """(row, query, token): what a query sees; none where every query sees every token."""
    is_causal: bool = False
    """The mask says: a token and all before it. Rows that begin, read by a kind that forgets none of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Alike:
    """Rows that compute equally many tokens and drafts, with captures after the same tokens, and their states."""

    queries: torch.Tensor
    """(row, query): places in the packed batch."""
    pages: torch.Tensor
    """(group, row): addresses of the states to start from."""
    writes: tuple[tuple[int, torch.Tensor], ...]
    """(tokens, pages): where the state after that many of the new tokens goes, in ascending order of tokens."""


@dataclass(frozen=True, slots=True, eq=False)
class KindBatch:
    """One kind in one step: `readings` of kinds that keep tokens, `alike` of states."""

    new: Places
    """(token,): where new tokens go."""
    readings: tuple[Reading, ...] = ()
    alike: tuple[Alike, ...] = ()
    kernel: object = None
    """What a backend of its own needs instead."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """All kinds of a stage in one step, and how the packed tokens are cut into rows."""

    kinds: tuple[KindBatch, ...]
    positions: torch.Tensor
    starts: np.ndarray
    counts: np.ndarray


@dataclass(frozen=True, slots=True)
class Padding:
    """Behind a step's own rows come others that nobody asked for, so that a recorded step has as many as it had then,
    or so that a single token has company.
    All that such a row reads and writes lies in one spare page."""

    rows: int
    """Of the step, without padding."""
    address: int
    """Of the spare page."""
    is_split: bool | None
    """Rows' tokens may be cut into pieces: another recording. None: it is not recorded, and cut as it likes."""


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
    captured: Captured | None = None
    """Of the kind that is being prepared."""

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
) -> Batch:
    """`prepares`: of each kind's backend; none: the reference's."""
    upload = upload or Direct(device)
    packed = pack(step, upload, padding)
    prepares, own = prepares or [prepare] * len(tables), [packed] * len(tables)
    if step.captures:
        own = [replace(packed, captured=captured(step, stage, kind)) for kind in range(len(tables))]
    kinds = tuple(
        one(plan, table, part, device)
        for one, plan, table, part in zip(prepares, stage.kinds, tables, own, strict=True)
    )
    return Batch(kinds, upload(packed.positions), step.starts, step.counts)


def prepare(plan: KindPlan, table: TableView, packed: Packed, device: torch.device) -> KindBatch:
    """For the reference backend."""
    del device
    if not plan.manifest:
        return KindBatch({})  # of two models in one pool, the other one has these layers
    step = packed.step
    if plan.kind.kind == "state":
        return _states(table, packed)
    new = _places(plan, table, step.rows[packed.index], packed.positions, packed.upload)
    readings = tuple(_reading(plan, table, packed, rows) for rows in _read_together(plan.kind, step))
    return KindBatch(new, readings)


def _places(
    plan: KindPlan, table: TableView, rows: np.ndarray, tokens: np.ndarray, upload: Upload
) -> dict[Cut, torch.Tensor]:
    """Of tokens of rows, which are arrays of one shape."""
    columns, units = table.column(tokens // plan.page_tokens), tokens % plan.page_tokens
    addresses = np.moveaxis(table.addresses[rows, :, columns], -1, 0).astype(np.int64)
    cuts = {cut_of(entry) for entry in plan.manifest}
    return {cut: upload(cut.places(addresses[cut.group], units)) for cut in cuts}


def _read_together(kind: Kind, step: Step) -> Iterator[np.ndarray]:
    """Groups of the step's rows."""
    read = step.starts + step.counts - kind.first_live(counts(step.starts))
    sizes = np.ceil(np.log2(np.maximum(read, SHORT_TOKENS)))
    alike = np.stack([step.counts, sizes])
    for one in np.unique(alike, axis=1).T:
        yield np.flatnonzero((alike == one[:, None]).all(axis=0))


def _states(table: TableView, packed: Packed) -> KindBatch:
    """A row's state is its first page; every token rewrites all of it, so none has a slot. Drafts have pages behind."""
    step, upload, own = packed.step, packed.upload, packed.captured
    drafts = np.zeros_like(step.counts) if step.drafts is None else step.drafts
    keys = np.stack([step.counts, drafts, *([] if own is None else [own.patterns(len(step.rows))])])
    addresses = packed.addresses(table, int(drafts.max(initial=0)) + 1).astype(np.int64)
    alike = []
    for key in np.unique(keys, axis=1).T:
        places, count, guesses = np.flatnonzero((keys == key[:, None]).all(axis=0)), int(key[0]), int(key[1])
        queries = upload(packed.begins[places][:, None] + np.arange(count))
        pages = upload(addresses[places, :, : guesses + 1].transpose(2, 1, 0))
        captures = [] if own is None else own.of_rows(places)
        writes = [(tokens, upload(found.astype(np.int64))) for tokens, found in captures]
        writes += [(count - guesses + draft, pages[draft]) for draft in range(guesses + 1)]
        alike.append(Alike(queries, pages[0], tuple(writes)))
    return KindBatch({}, alike=tuple(alike))


def _reading(plan: KindPlan, table: TableView, packed: Packed, places: np.ndarray) -> Reading:
    """Tokens from the first that the first query sees to the last query's own, sinks before them."""
    step, upload = packed.step, packed.upload
    starts, count = step.starts[places], int(step.counts[places[0]])
    first = plan.kind.first_live(counts(starts))
    sinks = plan.kind.kept_pages(counts(starts), page_tokens=1)
    end = starts + count
    column = np.arange((end - first + sinks).max())
    tokens = np.where(column < sinks[:, None], column, (first - sinks)[:, None] + column)
    queries = starts[:, None] + np.arange(count)
    mask = _sees(plan.kind, queries[:, :, None], tokens[:, None, :])
    tokens = np.minimum(tokens, (end - 1)[:, None])
    rows = np.broadcast_to(step.rows[places][:, None], tokens.shape)
    return Reading(
        upload(packed.begins[places][:, None] + np.arange(count)),
        _places(plan, table, rows, tokens, upload),
        None if mask.all() else upload(mask),
        mask.shape[1:] == (count, count) and bool((mask == np.tri(count, dtype=np.bool_)).all()),
    )


def _sees(kind: Kind, queries: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Which tokens a query attends to: causal, and as the kind forgets."""
    causal: np.ndarray = tokens <= queries
    window, chunk, sinks = (getattr(kind, name, 0) for name in ("window", "chunk", "sinks"))
    if chunk:
        causal &= tokens // chunk == queries // chunk
    elif window:
        causal &= (tokens > queries - window) | (tokens < sinks)
    return causal
