"""A step, spelled out for attention: where new tokens go, and which pages each row reads.

    row 0   ├── settled ──┼ new ┤         queries are the new tokens; a kind says how far back they see
    row 1   ├─ settled ─┼n┤
    packed  [ new of row 0 | new of row 1 | … ]

Rows that compute one token each are read together, padded to the longest; others one by one. States of rows
that compute equally many tokens are read together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from quire.core.step import Step, TableView
from quire.kinds import Kind, counts
from quire.plan.plan import KindPlan, StagePlan


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What some rows read of one kind: all rows have as many queries, and as many pages with padding."""

    queries: torch.Tensor
    """(row, query): places in the packed batch."""
    pages: torch.Tensor
    """(group, row, page): addresses; padding repeats one that is there."""
    mask: torch.Tensor
    """(row, query, token of the pages): what a query sees."""
    unseen: tuple[torch.Tensor, torch.Tensor]
    """(rows, tokens of their pages) that no query sees: unwritten slots among them may hold anything."""


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

    new_addresses: torch.Tensor
    """(group, token): the page that each new token goes to."""
    new_slots: torch.Tensor
    """(token,): its place in the page."""
    readings: tuple[Reading, ...] = ()
    alike: tuple[Alike, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """All kinds of a stage in one step, and how the packed tokens are cut into rows."""

    kinds: tuple[KindBatch, ...]
    positions: torch.Tensor
    starts: np.ndarray
    counts: np.ndarray


def make_batch(step: Step, stage: StagePlan, tables: tuple[TableView, ...], device: torch.device) -> Batch:
    index = np.repeat(np.arange(len(step.rows)), step.counts)
    begins = np.cumsum(step.counts) - step.counts
    positions = step.starts[index] + np.arange(len(index)) - begins[index]
    kinds = tuple(
        _kind(plan, table, step, index, positions, begins, device)
        for plan, table in zip(stage.kinds, tables, strict=True)
    )
    return Batch(kinds, _tensor(positions, device), step.starts, step.counts)


def _tensor(values: np.ndarray, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)


def _kind(
    plan: KindPlan,
    table: TableView,
    step: Step,
    index: np.ndarray,
    positions: np.ndarray,
    begins: np.ndarray,
    device: torch.device,
) -> KindBatch:
    if plan.kind.kind == "state":
        return _states(table, step, begins, device)
    rows = step.rows[index]
    logical = positions // plan.page_tokens
    addresses = table.addresses[rows, :, table.column(logical)].astype(np.int64).T
    readings = []
    single = step.counts == 1
    together = [np.flatnonzero(single)] if single.any() else []
    for places in [*together, *np.flatnonzero(~single)[:, None]]:
        readings.append(_reading(plan, table, step, places, begins, device))
    return KindBatch(_tensor(addresses, device), _tensor(positions % plan.page_tokens, device), tuple(readings))


def _states(table: TableView, step: Step, begins: np.ndarray, device: torch.device) -> KindBatch:
    """A row's state is its first page; every token rewrites all of it, so none has a slot. Drafts have pages behind."""
    alike, each = [], np.zeros_like(step.counts) if step.drafts is None else step.drafts
    for count, drafts in np.unique([step.counts, each], axis=1).T:
        places = np.flatnonzero((step.counts == count) & (each == drafts))
        packed = begins[places][:, None] + np.arange(count)
        pages = table.addresses[step.rows[places], :, : drafts + 1].astype(np.int64).transpose(2, 1, 0)
        alike.append(Alike(_tensor(packed, device), _tensor(pages[0], device), _tensor(pages[1:], device)))
    none = torch.empty(0, dtype=torch.int64, device=device)
    return KindBatch(none, none, alike=tuple(alike))


def _reading(
    plan: KindPlan, table: TableView, step: Step, places: np.ndarray, begins: np.ndarray, device: torch.device
) -> Reading:
    """Pages from the first that the first query sees to the last query's own, sinks before them."""
    kind, page_tokens = plan.kind, plan.page_tokens
    starts, count = step.starts[places], int(step.counts[places[0]])
    first = kind.first_page(counts(starts), page_tokens)
    sinks = kind.kept_pages(counts(starts), page_tokens)
    end = -(-(starts + count) // page_tokens)
    width = int((end - first + sinks).max())
    column = np.arange(width)[None, :]
    logical = np.where(column < sinks[:, None], column, first[:, None] + column - sinks[:, None])
    is_there = logical < end[:, None]
    logical = np.where(is_there, logical, (end - 1)[:, None])
    rows = step.rows[places]
    pages = table.addresses[rows[:, None], :, table.column(logical)].astype(np.int64)
    tokens = (logical[:, :, None] * page_tokens + np.arange(page_tokens)).reshape(len(places), -1)
    queries = starts[:, None] + np.arange(count)
    seen = _sees(kind, queries[:, :, None], tokens[:, None, :])
    mask = seen & np.repeat(is_there, page_tokens, axis=1)[:, None, :]
    packed = begins[places][:, None] + np.arange(count)
    blank, place = np.nonzero(~mask.any(axis=1))
    unseen = (_tensor(blank, device), _tensor(place, device))
    return Reading(_tensor(packed, device), _tensor(pages.transpose(2, 0, 1), device), _tensor(mask, device), unseen)


def _sees(kind: Kind, queries: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Which tokens a query attends to: causal, and as the kind forgets."""
    causal: np.ndarray = tokens <= queries
    window, chunk, sinks = (getattr(kind, name, 0) for name in ("window", "chunk", "sinks"))
    if chunk:
        causal &= tokens // chunk == queries // chunk
    elif window:
        causal &= (tokens > queries - window) | (tokens < sinks)
    return causal
