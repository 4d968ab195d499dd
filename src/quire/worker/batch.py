"""A step, spelled out for attention: where new tokens go, and which tokens each row reads.

    row 0   ├── settled ──┼ new ┤         queries are the new tokens; a kind says how far back they see
    row 1   ├─ settled ─┼n┤
    packed  [ new of row 0 | new of row 1 | … ]

Rows that compute equally many tokens and read about as many are read together, padded to the longest of them. States of
rows that compute equally many tokens are read together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from quire.core.step import Step, TableView
from quire.kinds import Kind, counts
from quire.plan.plan import KindPlan, StagePlan
from quire.worker.arena import Cut, cut_of

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
    """Rows that compute equally many tokens and drafts, and where their states are."""

    queries: torch.Tensor
    """(row, query): places in the packed batch."""
    pages: torch.Tensor
    """(group, row): addresses."""
    draft_pages: torch.Tensor
    """(draft, group, row): where the state behind each draft goes."""


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


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A step's new tokens, one row after another."""

    step: Step
    index: np.ndarray
    """(token,): which of the step's rows each belongs to."""
    positions: np.ndarray
    begins: np.ndarray
    """(row,): where its tokens begin."""


Prepare = Callable[[KindPlan, TableView, Packed, torch.device], KindBatch]


def make_batch(
    step: Step,
    stage: StagePlan,
    tables: tuple[TableView, ...],
    device: torch.device,
    prepares: Sequence[Prepare] | None = None,
) -> Batch:
    """`prepares`: of each kind's backend; none: the reference's."""
    index = np.repeat(np.arange(len(step.rows)), step.counts)
    begins = np.cumsum(step.counts) - step.counts
    packed = Packed(step, index, step.starts[index] + np.arange(len(index)) - begins[index], begins)
    kinds = tuple(
        one(plan, table, packed, device)
        for one, plan, table in zip(prepares or [prepare] * len(tables), stage.kinds, tables, strict=True)
    )
    return Batch(kinds, _tensor(packed.positions, device), step.starts, step.counts)


def prepare(plan: KindPlan, table: TableView, packed: Packed, device: torch.device) -> KindBatch:
    """For the reference backend."""
    if not plan.manifest:
        return KindBatch({})  # of two models in one pool, the other one has these layers
    step, begins = packed.step, packed.begins
    if plan.kind.kind == "state":
        return _states(table, step, begins, device)
    new = _places(plan, table, step.rows[packed.index], packed.positions, device)
    readings = tuple(_reading(plan, table, step, rows, begins, device) for rows in _read_together(plan.kind, step))
    return KindBatch(new, readings)


def _tensor(values: np.ndarray, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)


def _places(
    plan: KindPlan, table: TableView, rows: np.ndarray, tokens: np.ndarray, device: torch.device
) -> dict[Cut, torch.Tensor]:
    """Of tokens of rows, which are arrays of one shape."""
    columns, units = table.column(tokens // plan.page_tokens), tokens % plan.page_tokens
    addresses = np.moveaxis(table.addresses[rows, :, columns], -1, 0).astype(np.int64)
    cuts = {cut_of(entry) for entry in plan.manifest}
    return {cut: _tensor(cut.places(addresses[cut.group], units), device) for cut in cuts}


def _read_together(kind: Kind, step: Step) -> Iterator[np.ndarray]:
    """Groups of the step's rows."""
    read = step.starts + step.counts - kind.first_live(counts(step.starts))
    sizes = np.ceil(np.log2(np.maximum(read, SHORT_TOKENS)))
    alike = np.stack([step.counts, sizes])
    for one in np.unique(alike, axis=1).T:
        yield np.flatnonzero((alike == one[:, None]).all(axis=0))


def _states(table: TableView, step: Step, begins: np.ndarray, device: torch.device) -> KindBatch:
    """A row's state is its first page; every token rewrites all of it, so none has a slot. Drafts have pages behind."""
    alike, each = [], np.zeros_like(step.counts) if step.drafts is None else step.drafts
    for count, drafts in np.unique([step.counts, each], axis=1).T:
        places = np.flatnonzero((step.counts == count) & (each == drafts))
        packed = begins[places][:, None] + np.arange(count)
        pages = table.addresses[step.rows[places], :, : drafts + 1].astype(np.int64).transpose(2, 1, 0)
        alike.append(Alike(_tensor(packed, device), _tensor(pages[0], device), _tensor(pages[1:], device)))
    return KindBatch({}, alike=tuple(alike))


def _reading(
    plan: KindPlan, table: TableView, step: Step, places: np.ndarray, begins: np.ndarray, device: torch.device
) -> Reading:
    """Tokens from the first that the first query sees to the last query's own, sinks before them."""
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
    packed = begins[places][:, None] + np.arange(count)
    return Reading(
        _tensor(packed, device),
        _places(plan, table, rows, tokens, device),
        None if mask.all() else _tensor(mask, device),
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
