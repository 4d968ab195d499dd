"""Between the arena's pages and a tier's host memory: local copies, in a step's order.

    store    pages ──▶ blocks     whole records, page after page
    load     blocks ──▶ pages     where the row's tables say that they lie

Nobody else looks into pages for a tier, and no tier writes to them. Where copies go on beside the steps, a load's row
computes nothing before they are done; whoever has its pages next comes behind them on the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quire.core.step import Step, TableView
from quire.core.tier import Blocks, Shelf, Store
from quire.plan.layout import GRANULE_BYTES
from quire.plan.plan import Plan, StagePlan
from quire.plan.records import Records, Span
from quire.worker.copies import Copies, Freight, Ints

NOTHING = np.empty(0, dtype=np.int64)


class Staging:
    def __init__(self, plan: Plan, copies: Copies, shelf: Shelf) -> None:
        """`shelf`: keeps track of what is in host memory."""
        self._records = Records(plan)
        (self._stage,) = [stage for stage in plan.stages if stage.kinds]
        self._copies = copies
        self._shelf = shelf

    def store(self, stores: Sequence[Store]) -> None:
        freight = Freight(self._records.block_bytes)
        for store in stores:
            freight.open(store.place.blocks)
            begin = 0
            for _, kind, pages in store.pages:
                size = self._stage.kinds[kind].page_bytes
                freight.add(places(self._stage, kind, pages), size, begin)
                begin += size * len(pages)
        numbers = [store.place.number for store in stores]
        wait = self._copies.out(freight.pieces())
        if wait is not None:
            self._shelf.follow(wait, stored=numbers)
            return
        for number in numbers:
            self._shelf.stored(number)

    def load(self, loads: Sequence[tuple[int, int]], tables: Sequence[Sequence[TableView]]) -> None:
        """Brings what loads staged into their rows' pages: (number of the load, row)."""
        freight = Freight(self._records.block_bytes)
        for number, row in loads:
            self._add(freight, number, row, tables)
        wait = self._copies.back(freight.pieces())
        numbers = [number for number, _ in loads]
        if wait is not None:
            self._shelf.follow(wait, landed=numbers)
            return
        for number in numbers:
            self._shelf.landed(number)

    def _add(self, freight: Freight, number: int, row: int, tables: Sequence[Sequence[TableView]]) -> None:
        staged = self._shelf.staged(number)
        load = staged.load
        for unit, blocks in enumerate(staged.units, load.held_tokens // self._records.unit_tokens):
            self._add_record(freight, blocks, self._records.in_unit(unit), row, tables, load.held_tokens)
        if self._records.has_boundaries:
            spans = self._records.at(load.tokens)
            self._add_record(freight, staged.boundary, spans, row, tables, load.held_tokens)

    @staticmethod
    def _add_record(
        freight: Freight,
        blocks: Blocks,
        spans: list[Span],
        row: int,
        tables: Sequence[Sequence[TableView]],
        held_tokens: int,
    ) -> None:
        """Pages of kinds that grow which hold nothing but tokens that the row has stay as they are."""
        freight.open(blocks)
        begin = 0
        for span in spans:
            view, size = tables[span.stage][span.kind], span.plan.page_bytes
            addresses = view.addresses[row][:, view.column(span.logical)].T.ravel()
            held_pages = held_tokens // span.plan.page_tokens if span.plan.kind.grows else 0
            skipped = int((span.logical < held_pages).sum()) * span.plan.groups
            pages = addresses[skipped:].astype(np.int64) * GRANULE_BYTES
            freight.add(pages, size, begin + skipped * size)
            begin += span.bytes

    # ── what steps do to pages that are being copied ──────────────────────

    def before_write(self, kind: int, written: Ints, read: Ints = NOTHING) -> None:
        """The device is about to write to some pages of a kind, and to read others."""
        if self._copies.is_busy:
            self._copies.before(places(self._stage, kind, written), places(self._stage, kind, read))

    def before_rows(self, step: Step) -> None:
        """The device is about to write what rows compute. They read nothing that is still on its way."""
        if not len(step.rows) or not self._copies.is_busy:
            return
        assert not np.isin(step.rows, [row for _, row in step.loads]).any(), "a row waits for its load"
        for kind, view in zip(self._stage.kinds, step.tables[0], strict=True):
            if kind.kind.kind == "state":
                addresses = view.addresses[step.rows]
            else:
                index = np.repeat(np.arange(len(step.rows)), step.counts)
                nth = np.arange(len(index)) - (np.cumsum(step.counts) - step.counts)[index]
                columns = view.column((step.starts[index] + nth) // kind.page_tokens)
                addresses = view.addresses[step.rows[index], :, columns]
            self._copies.before(addresses.ravel().astype(np.int64) * GRANULE_BYTES, NOTHING)
        for capture in step.captures:
            self.before_write(capture.kind, capture.pages)


def places(stage: StagePlan, kind: int, pages: Ints) -> Ints:
    """Where pages begin in the arena, in bytes."""
    return stage.addresses(kind, pages).astype(np.int64) * GRANULE_BYTES
