"""Between the arena's pages and a tier's staging memory: local copies, in a step's order.

    store    pages ──▶ blocks     whole records, page after page
    load     blocks ──▶ pages     where the row's tables say that they lie

Nobody else looks into pages for a tier, and no tier writes to them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from quire.core.step import TableView
from quire.core.tier import Blocks, Shelf, Store
from quire.plan.plan import Plan
from quire.plan.records import Records, Span
from quire.worker.arena import Arena


class Staging:
    def __init__(self, plan: Plan, arenas: Sequence[Arena], memory: torch.Tensor, shelf: Shelf) -> None:
        """`memory`: (block, byte), whose contents the shelf keeps track of."""
        self._records = Records(plan)
        self._arenas = arenas
        self._memory = memory
        self._shelf = shelf

    def store(self, store: Store) -> None:
        parts = [self._arenas[stage].read(kind, pages) for stage, kind, pages in store.pages]
        data = torch.cat([part.flatten() for part in parts]) if len(parts) > 1 else parts[0].flatten()
        size = self._memory.shape[1]
        for place, block in enumerate(store.place.blocks):
            piece = data[place * size : (place + 1) * size]
            self._memory[block, : len(piece)].copy_(piece)
        self._shelf.stored(store.place.number)

    def load(self, number: int, row: int, tables: Sequence[Sequence[TableView]]) -> None:
        """Brings what a load staged into a row's pages."""
        staged = self._shelf.staged(number)
        load, unit_tokens = staged.load, self._records.unit_tokens
        first = load.held_tokens // unit_tokens
        for unit, blocks in enumerate(staged.units, first):
            self._write(blocks, self._records.in_unit(unit), row, tables, load.held_tokens)
        if self._records.has_boundaries:
            self._write(staged.boundary, self._records.at(load.tokens), row, tables, load.held_tokens)
        self._shelf.landed(number)

    def _write(
        self, blocks: Blocks, spans: list[Span], row: int, tables: Sequence[Sequence[TableView]], held_tokens: int
    ) -> None:
        """One record; pages of kinds that grow which hold nothing but tokens that the row has stay as they are."""
        data = self._data(blocks)
        begin = 0
        for span in spans:
            view = tables[span.stage][span.kind]
            addresses = view.addresses[row][:, view.column(span.logical)].T.ravel()
            pages = data[begin : begin + span.bytes].view(len(addresses), span.plan.page_bytes)
            held_pages = held_tokens // span.plan.page_tokens if span.plan.kind.grows else 0
            skipped = int((span.logical < held_pages).sum()) * span.plan.groups
            self._arenas[span.stage].write(span.kind, addresses[skipped:].astype(np.int64), pages[skipped:])
            begin += span.bytes

    def _data(self, blocks: Blocks) -> torch.Tensor:
        if len(blocks) == 1:
            return self._memory[blocks[0]]
        return torch.cat([self._memory[block] for block in blocks]) if blocks else self._memory.new_empty(0)
