"""Copies between the arena's pages and a tier's host memory, in a step's order.

    store    pages ──▶ blocks     whole records, page after page
    load     blocks ──▶ pages     where the row's tables say that they lie

This is the only access of tiers to pages. Where copies run concurrently with the steps, the row of a load computes
nothing before its copy is complete, and later work on the same pages waits for it on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil

import numpy as np

from quire.core.step import Step, TableView
from quire.core.tier import Blocks, StagingMemory, Store
from quire.kinds import Keeps
from quire.plan.layout import GRANULE_BYTES
from quire.plan.plan import Plan, StagePlan
from quire.plan.records import Records, Span
from quire.worker.pages.copies import Copies, Ints, RecordPages

NOTHING = np.empty(0, dtype=np.int64)


def rank_block_bytes(plan: Plan) -> int:
    """Of a rank's host memory. Blocks of all ranks have the same numbers, and each holds a rank's own part of what a
    block holds: so many blocks hold a rank's part of every record that as many of the plan's blocks hold whole."""
    kinds = [kind for stage in plan.stages for kind in stage.kinds]
    share = max(Fraction(kind.groups * kind.page_bytes, kind.unique_page_bytes) for kind in kinds)
    return ceil(Records(plan).block_bytes * share)


class Staging:
    """Turns a step's stores and loads into copies of pieces."""

    def __init__(self, plan: Plan, copies: Copies, memory: StagingMemory) -> None:
        """`memory`: knows what is in host memory, and is notified when copies are complete."""
        self._records, self._block_bytes = Records(plan), rank_block_bytes(plan)
        (self._stage,) = [stage for stage in plan.stages if stage.kinds]
        self._copies = copies
        self._memory = memory

    def store(self, stores: Sequence[Store]) -> None:
        collected = RecordPages(self._block_bytes)
        for store in stores:
            collected.open(store.place.blocks)
            begin = 0
            for _, kind, pages in store.pages:
                size = self._stage.kinds[kind].page_bytes
                collected.add(places(self._stage, kind, pages), size, begin)
                begin += size * len(pages)
        numbers = [store.place.number for store in stores]
        wait = self._copies.out(collected.pieces())
        if wait is not None:
            self._memory.follow(wait, stored=numbers)
            return
        for number in numbers:
            self._memory.note_stored(number)

    def load(self, loads: Sequence[tuple[int, int]], tables: Sequence[Sequence[TableView]]) -> None:
        """Copies what loads staged into their rows' pages: (number of the load, row)."""
        collected = RecordPages(self._block_bytes)
        for number, row in loads:
            self._add(collected, number, row, tables)
        wait = self._copies.back(collected.pieces())
        numbers = [number for number, _ in loads]
        if wait is not None:
            self._memory.follow(wait, landed=numbers)
            return
        for number in numbers:
            self._memory.note_landed(number)

    def _add(self, collected: RecordPages, number: int, row: int, tables: Sequence[Sequence[TableView]]) -> None:
        staged = self._memory.staged_load(number)
        for blocks, spans in zip(staged.records, self._records.contents(staged.load), strict=True):
            self._add_record(collected, blocks, spans, row, tables, staged.load.held_tokens)

    @staticmethod
    def _add_record(
        collected: RecordPages,
        blocks: Blocks,
        spans: list[Span],
        row: int,
        tables: Sequence[Sequence[TableView]],
        held_tokens: int,
    ) -> None:
        """Skips pages of growing kinds that hold only tokens which the row already has."""
        collected.open(blocks)
        begin = 0
        for span in spans:
            view, size = tables[span.stage][span.kind], span.plan.page_bytes
            addresses = view.addresses[row][:, view.column(span.logical)].T.ravel()
            held_pages = held_tokens // span.plan.page_tokens if span.plan.kind.grows else 0
            skipped = int((span.logical < held_pages).sum()) * span.plan.groups
            pages = addresses[skipped:].astype(np.int64) * GRANULE_BYTES
            collected.add(pages, size, begin + skipped * size)
            begin += len(span.logical) * span.plan.groups * size  # this rank's

    # ── order between steps and copies that are under way ──────────────────────

    def before_write(self, kind: int, written: Ints, read: Ints = NOTHING) -> None:
        """Called before work is queued that writes some pages of a kind and reads others."""
        if self._copies.is_busy:
            self._copies.before(places(self._stage, kind, written), places(self._stage, kind, read))

    def before_rows(self, step: Step) -> None:
        """Called before the rows of a step are queued. They read no page that a copy is still writing."""
        if not len(step.rows) or not self._copies.is_busy:
            return
        assert not np.isin(step.rows, [row for _, row in step.loads]).any(), "a row waits for its load"
        for kind, view in zip(self._stage.kinds, step.tables[0], strict=True):
            if kind.kind.keeps is Keeps.STATE:
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
