"""Runs a plan of several ranks without several devices.

rank 0, rank 1    an arena each, cut as the plan says: what a load brings is cut for them, what goes out is joined
whole             the same pages with all heads of the model, at as many times the addresses: there it is computed
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from quire.build.tiers import layout_of
from quire.core.connector import Connector
from quire.core.step import Step, StepResult, TableView
from quire.core.tier import Blocks, Store
from quire.core.units import round_up
from quire.handover.portable import Portable
from quire.movers.host import HostMemory
from quire.plan.layout import GRANULE_BYTES, PART_ALIGNMENT, Entry
from quire.plan.plan import KindPlan, Plan, StagePlan
from quire.plan.records import Records, Span, size_bytes
from quire.tiers.stack import Stack
from quire.worker.pages.arena import Arena
from tiny_models import Service


class RankedRunner:
    def __init__(self, name: str, plan: Plan) -> None:
        self.plan, (stage,) = plan, plan.stages
        self.ranks = [Arena(stage, torch.device("cpu")) for _ in range(plan.tensor_parallel)]
        whole = whole_stage(stage, plan.tensor_parallel)
        self.inner = Service(name, replace(plan, stages=(whole,), tensor_parallel=1)).runner
        self.inner.staging = self  # type: ignore[assignment]
        self.whole = self.inner.arena
        self._records, self._portable = Records(plan), Portable(plan)
        self._tables: tuple[tuple[TableView, ...], ...] = ()

    def attach(self, host_bytes: int, connectors: Sequence[Connector], weights: str) -> Stack:
        self._memory = HostMemory(host_bytes, self._records.block_bytes)
        self.stack = Stack(self._records, self._memory, connectors, layout_of(self.plan, weights))
        return self.stack

    def launch(self, step: Step) -> None:
        self._tables, times = step.tables, len(self.ranks)
        tables = tuple(tuple(replace(view, addresses=times * view.addresses) for view in own) for own in step.tables)
        self.inner.launch(replace(step, tables=tables))

    def collect(self) -> StepResult:
        return self.inner.collect()

    # ── what the runner asks its staging for ──────────────────────────────

    def before_write(self, kind: int, written: np.ndarray, read: np.ndarray) -> None: ...

    def before_rows(self, step: Step) -> None: ...

    def store(self, stores: Sequence[Store]) -> None:
        for store in stores:
            self._store(store)

    def _store(self, store: Store) -> None:
        spans = [self._span(kind, pages) for _, kind, pages in store.pages]
        record = np.zeros(size_bytes(spans), dtype=np.uint8)
        for rank, arena in enumerate(self.ranks):
            read = []
            for span, (_, kind, pages) in zip(spans, store.pages, strict=True):
                addresses = self.plan.stages[0].addresses(kind, pages).reshape(-1, span.plan.groups)
                self._move(kind, addresses, to_ranks=True)
                read.append(arena.read(kind, pages).numpy().reshape(*addresses.shape, -1))
            self._portable.join(record, spans, rank, read)
        self._write(store.place.blocks, record)
        self.stack.note_stored(store.place.number)

    def _span(self, kind: int, pages: np.ndarray) -> Span:
        """As many pages as go out; which of the request's they are does not matter here."""
        return Span(0, kind, self._kind(kind), np.arange(len(pages) // self._kind(kind).groups))

    def load(self, loads: Sequence[tuple[int, int]], _: Sequence[Sequence[TableView]]) -> None:
        for number, row in loads:
            self._load(number, row)

    def _load(self, number: int, row: int) -> None:
        staged = self.stack.staged_load(number)
        for blocks, spans in zip(staged.records, self._records.contents(staged.load), strict=True):
            self._land(blocks, spans, row, staged.load.held_tokens)
        self.stack.note_landed(number)

    def _land(self, blocks: Blocks, spans: list[Span], row: int, held_tokens: int) -> None:
        record = np.concatenate(
            [np.frombuffer(part, np.uint8) for part in self._memory.parts(blocks, size_bytes(spans))]
        )
        for arena in self.ranks:
            arena.bytes.fill_(0xFF)
        cut = [self._portable.cut(record, spans, rank) for rank in range(len(self.ranks))]
        for place, span in enumerate(spans):
            view = self._tables[0][span.kind]
            addresses = view.addresses[row][:, view.column(span.logical)].T
            first = int((span.logical < held_tokens // span.plan.page_tokens).sum()) if span.plan.kind.grows else 0
            for arena, pages in zip(self.ranks, cut, strict=True):
                data = torch.from_numpy(pages[place][first:].reshape(-1, span.plan.page_bytes))
                arena.write(span.kind, addresses[first:].ravel().astype(np.int64), data)
            self._move(span.kind, addresses[first:], to_ranks=False)

    def _write(self, blocks: Blocks, record: np.ndarray) -> None:
        begin = 0
        for part in self._memory.parts(blocks, len(record)):
            part[:] = record[begin : begin + len(part)].data
            begin += len(part)

    def _kind(self, kind: int) -> KindPlan:
        return self.plan.stages[0].kinds[kind]

    def _move(self, kind: int, addresses: np.ndarray, to_ranks: bool) -> None:
        """Between ranks' pages and whole ones; `addresses`: (page, group) of a rank."""
        for small, large in zip(self._kind(kind).manifest, self.whole.stage.kinds[kind].manifest, strict=True):
            for address in addresses[:, small.group].tolist():
                whole = part_at(self.whole, len(self.ranks) * address, large)
                for rank, arena in enumerate(self.ranks):
                    heads = small.heads_of(rank, len(self.ranks))
                    own = part_at(arena, address, small)[:, : len(heads)]
                    joined = whole[:, heads.start : heads.stop]
                    (own if to_ranks else joined).copy_(joined if to_ranks else own)


def part_at(arena: Arena, address: int, entry: Entry) -> torch.Tensor:
    begin = address * GRANULE_BYTES + entry.offset_bytes
    return arena.bytes[begin : begin + entry.bytes].view(entry.units, entry.heads, entry.row_bytes)


def whole_stage(stage: StagePlan, ranks: int) -> StagePlan:
    kinds = tuple(
        replace(kind, page_bytes=ranks * kind.page_bytes, manifest=whole_manifest(kind.manifest))
        for kind in stage.kinds
    )
    return replace(stage, kinds=kinds, sheet_bytes=ranks * stage.sheet_bytes)


def whole_manifest(manifest: tuple[Entry, ...]) -> tuple[Entry, ...]:
    found, ends = [], dict.fromkeys((entry.group for entry in manifest), 0)
    for entry in manifest:
        found.append(replace(entry, heads=entry.model_heads, offset_bytes=ends[entry.group]))
        ends[entry.group] = round_up(ends[entry.group] + found[-1].bytes, PART_ALIGNMENT)
    return tuple(found)
