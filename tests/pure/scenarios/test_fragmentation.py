"""Fragmentation: whatever an adversary does, compaction brings every kind back to the sheets that its pages need."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from quire.cache.audit import audit
from quire.cache.compaction import compact
from quire.cache.memory import StageMemory
from quire.cache.pool import Holder, Shelf
from quire.core.search import greatest
from quire.models.shape import ModelShape
from quire.plan import bound
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings
from small_kinds import KINDS

ROWS, LONGEST = 24, 400
MIXES = [["full", "chunked"], ["full", "state"], ["chunked", "window", "full"], ["state", "sink", "window", "full"]]
"""Pages of different sizes, so that sheets hold several of them."""


def ints(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


def plan_of(names: list[str]) -> Plan:
    layers = tuple(KINDS[name] for name in names for _ in range(2))
    shape = ModelShape("torn", "test", layers, max_length=LONGEST, weights_known=False)
    settings = Settings(batch_tokens=LONGEST, max_requests=ROWS, page_tokens={"": 4})
    roomy = make_plan(shape, settings, Budget(sheets=(1000,)))
    return make_plan(shape, settings, Budget(sheets=(2 * bound.minimum(roomy.stages[0].kinds, LONGEST, 0),)))


class Adversary:
    """Grows long and short requests in turn, a little at a time, so that their pages lie in the same sheets, until the
    pool is full; then ends most of the short ones and some long ones, while pages here and there are being read."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self.random = Random(seed)
        self.memory = StageMemory(plan.stages[0], plan, ROWS)
        self.settled = [0] * ROWS
        self.pins: list[tuple[int, int]] = []

    def tear(self) -> None:
        growing = list(range(ROWS))
        while growing:
            row = self.random.choice(growing)
            limit = LONGEST if row % 3 == 0 else 60
            if not self.grow(row, min(self.random.choice((1, 4, 9)), limit - self.settled[row])):
                growing.remove(row)
        for row in range(ROWS):
            if self.random.random() < (0.2 if row % 3 == 0 else 0.7):
                self.memory.release(row)
                self.settled[row] = 0
        for _ in range(self.random.randint(0, 2)):
            self.pin()

    def grow(self, row: int, tokens: int) -> bool:
        needs = self.memory.needs(ints(row), ints(self.settled[row]), ints(tokens), ints(0))
        if not tokens or not self.memory.fitting(ints(row), needs):
            return False
        self.memory.grow(needs)
        self.settled[row] += tokens
        self.memory.settle(ints(row), ints(self.settled[row]))
        return True

    def pin(self) -> None:
        """One more page, in place of another if three are pinned already."""
        pool = self.memory.pool
        if len(self.pins) == 3:
            kind, page = self.pins.pop(0)
            pool.drop(kind, ints(page), Holder.PIN)
        kind = self.random.randrange(len(pool.shelves))
        page = int(self.random.choice(np.flatnonzero(pool.shelves[kind].in_use()).tolist()))
        pool.hold(kind, ints(page), Holder.PIN)
        self.pins.append((kind, page))


def sheets_by_pages(shelf: Shelf) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], int]:
    """Pages in each sheet that has some and none pinned, and how many sheets have a pinned page."""
    is_pinned = (shelf.count(Holder.PIN) > 0).reshape(-1, shelf.pages_per_sheet).any(axis=1)
    return shelf.used_in_sheet[(shelf.used_in_sheet > 0) & ~is_pinned], int(is_pinned.sum())


def check_bound(memory: StageMemory, moved_kinds: set[int]) -> None:
    """No kind has more sheets than if at most one were partly filled, besides those with a pinned page; and where pages
    were moved, at most one is."""
    for kind, shelf in enumerate(memory.pool.shelves):
        pages, _ = sheets_by_pages(shelf)
        assert len(pages) <= -(-int(pages.sum()) // shelf.pages_per_sheet), memory.stage.kinds[kind].name
        if kind in moved_kinds:
            assert (pages < shelf.pages_per_sheet).sum() <= 1, memory.stage.kinds[kind].name


@pytest.mark.parametrize("names", MIXES, ids=" ".join)
def test_after_compaction_at_most_one_sheet_of_a_kind_is_wasted(names: list[str]) -> None:
    """Besides sheets with a pinned page, which stay where they are."""
    adversary = Adversary(plan_of(names), seed=1)
    memory = adversary.memory
    freed = 0
    for _ in range(60):
        adversary.tear()
        before, pinned = memory.pool.free_sheets, set(adversary.pins)
        moves = compact(memory)
        freed += memory.pool.free_sheets - before
        assert not pinned & {(one.kind, page) for one in moves for page in one.source.tolist()}
        check_bound(memory, {one.kind for one in moves})
        audit(memory, {row: f"row {row}" for row in range(ROWS)})
    assert freed > 100


@pytest.mark.parametrize("names", MIXES, ids=" ".join)
def test_what_fits_by_whole_sheets_gets_its_pages_after_compaction(names: list[str]) -> None:
    """Everyone's pages and as many more of one kind as whole sheets allow, a sheet for each pinned page left aside:
    whichever kind it is and however torn the others are, they are there after compaction."""
    adversary = Adversary(plan_of(names), seed=2)
    pool = adversary.memory.pool
    needed_compaction = 0
    for turn in range(60):
        adversary.tear()
        kind = turn % len(pool.shelves)
        needs = [most_pages(adversary.memory, kind) if one == kind else 0 for one in range(len(pool.shelves))]
        if pool.sheets_short(needs):
            needed_compaction += 1
            compact(adversary.memory)
        assert not pool.sheets_short(needs)
        pages = pool.take(kind, needs[kind])
        assert len(np.unique(pages)) == needs[kind]
        pool.drop(kind, pages, Holder.REQUEST)
    assert needed_compaction > 20


def most_pages(memory: StageMemory, kind: int) -> int:
    """More pages of a kind that fit beside all that are in use, by the bound, if each pinned page costs a sheet."""
    used = [int(shelf.in_use().sum()) for shelf in memory.pool.shelves]
    pinned = sum(sheets_by_pages(shelf)[1] for shelf in memory.pool.shelves)

    def fits(more: int) -> bool:
        totals = [np.asarray(count + more * (one == kind)) for one, count in enumerate(used)]
        return int(bound.sheets_needed(memory.stage.kinds, totals)) + pinned <= memory.stage.sheets

    return greatest(0, memory.stage.sheets * memory.stage.kinds[kind].pages_per_sheet, fits)
