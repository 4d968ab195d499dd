"""Doubles of what lies outside the engine: a store that pins pages, a drafter that errs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

import numpy as np

from quire.cache.pool import Holder, Pages
from quire.cache.tables import Table
from quire.check import state
from quire.check.contents import KindContents
from quire.check.definitions import Ints, Violation, is_fixed
from quire.check.shadow import ShadowRunner
from quire.core.request import Tokens
from quire.scheduler.scheduler import Scheduler


@dataclass(frozen=True, slots=True, eq=False)
class Pin:
    stage: int
    kind: int
    pages: Pages
    contents: Ints
    until: int


class PinningStore:
    """Reads pages that are settled or cached, for a few steps; meanwhile they may not change.

    It pins at most as many pages of a stage as there are sheets to spare: one pinned page keeps at most one sheet from
    the elder.
    """

    def __init__(self, scheduler: Scheduler, runner: ShadowRunner, spare: int) -> None:
        self.scheduler, self.runner, self.spare = scheduler, runner, spare
        self.pins: list[Pin] = []

    def pin(self, random: Random, until: int) -> bool:
        """Pins a random page that may be read. False: there is none, too many are pinned, or copies are due first."""
        stage = random.randrange(len(self.scheduler.memories))
        kind = random.randrange(len(self.scheduler.memories[stage].tables))
        pages = self._readable(stage, kind)
        pinned = sum(pin.stage == stage for pin in self.pins)
        if state.copies_due(self.scheduler) or not len(pages) or pinned >= self.spare:
            return False
        shelf = self.scheduler.memories[stage].pool.shelves[kind]
        used = shelf.used_in_sheet[pages // shelf.pages_per_sheet]
        lonely = pages[used == used.min()]  # what compaction would like to move
        chosen = np.array([random.choice((lonely if random.random() < 0.7 else pages).tolist())])
        self.scheduler.memories[stage].pool.hold(kind, chosen, Holder.PIN)
        self.pins.append(Pin(stage, kind, chosen, self._contents(stage, kind).slots[chosen].copy(), until))
        return True

    def check(self) -> None:
        """What is read stays where it is, as it is."""
        for pin in self.pins:
            contents, pool = self._contents(pin.stage, pin.kind), self.scheduler.memories[pin.stage].pool
            if not pool.shelves[pin.kind].count(Holder.PIN)[pin.pages].all():
                raise Violation(f"{contents.table.plan.name}: page {pin.pages[0]} was moved while it was read")
            if not np.array_equal(contents.slots[pin.pages], pin.contents):
                raise Violation(f"{contents.table.plan.name}: page {pin.pages[0]} changed while it was read")

    def unpin(self, now: int) -> None:
        """Lets go what was read."""
        for pin in [pin for pin in self.pins if pin.until <= now]:
            self.scheduler.memories[pin.stage].pool.drop(pin.kind, pin.pages, Holder.PIN)
            self.pins.remove(pin)

    def _contents(self, stage: int, kind: int) -> KindContents:
        return self.runner.stages[stage][kind]

    def _readable(self, stage: int, kind: int) -> Pages:
        """Pages that nobody writes to any more: cached ones, and those that settled tokens fill."""
        memory = self.scheduler.memories[stage]
        table, rows = memory.tables[kind], self.scheduler.rows
        cached = np.flatnonzero(memory.pool.shelves[kind].count(Holder.CACHE) > 0)
        landed = state.landed_rows(self.scheduler)
        settled = [
            table.pages[row, :, int(table.column(np.asarray(logical)))]
            for row in rows.requests
            if not is_fixed(table.kind) and not rows.is_loading[row] and row not in landed
            for logical in range(table.first[row], min(table.end[row], rows.settled[row] // table.plan.page_tokens))
        ]
        return np.unique(np.concatenate([np.setdiff1d(cached, self._written(table)), *settled]))

    def _written(self, table: Table) -> Pages:
        """Pages that rows go on writing: the cache may have one too, up to the point where a row kept a boundary."""
        rows = self.scheduler.rows
        own = [
            table.pages[row, :, int(table.column(np.asarray(logical)))]
            for row in rows.requests
            for logical in range(max(table.first[row], rows.settled[row] // table.plan.page_tokens), table.end[row])
            if not is_fixed(table.kind)
        ]
        return np.concatenate([*own, np.empty(0, dtype=np.int64)])


class ErringDrafter:
    """Knows what a row will yield, and says it wrongly from some place on, or says nothing."""

    def __init__(self, random: Random, script_of: Callable[[int], Ints]) -> None:
        self.random, self.script_of = random, script_of
        """By row: prompt and outputs of its tenant."""
        self.told: dict[int, int] = {}
        """By row: how many tokens were told."""

    def enter(self, row: int, tokens: Tokens, scope: str) -> None:
        del scope
        self.told[row] = 0
        self._note(row, tokens)

    def extend(self, rows: Ints, tokens: Tokens) -> None:
        for row, token in zip(rows.tolist(), tokens, strict=True):
            self._note(row, np.array([token]))

    def _note(self, row: int, tokens: Tokens) -> None:
        begin, self.told[row] = self.told[row], self.told[row] + len(tokens)
        if not np.array_equal(tokens, self.script_of(row)[begin : self.told[row]]):
            raise Violation(f"the drafter is told tokens of row {row} that are not its own")

    def propose(self, rows: Ints, counts: Ints, step_tokens: int) -> Mapping[int, Tokens]:
        del step_tokens
        pairs = enumerate(zip(rows.tolist(), counts.tolist(), strict=True))
        return {place: self._guess(row, count) for place, (row, count) in pairs}

    def _guess(self, row: int, count: int) -> Tokens:
        most = self.random.choice((0, count, count, self.random.randint(0, count)))
        guessed = self.script_of(row)[self.told[row] : self.told[row] + most].astype(np.int32)
        guessed[self.random.choice((0, most, most, self.random.randint(0, most))) :] += 1
        return guessed
