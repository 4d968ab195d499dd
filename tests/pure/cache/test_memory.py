"""Pool and tables: whatever rows do, the books balance, and a row holds exactly what its demand says."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from examples import examples
from quire.cache.audit import BooksDoNotBalance, audit
from quire.cache.compaction import compact
from quire.cache.memory import StageMemory
from quire.cache.pool import ONE, Holder
from quire.cache.tables import Need
from quire.check.state import sheets_to_gain
from quire.kinds import counts
from quire.models.catalogue import catalogue_names
from quire.models.read import read_model
from quire.models.shape import ModelShape
from quire.plan import bound
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings
from small_kinds import KINDS

ROWS, LENGTH = 6, 400


def small_plan(names: list[str], sheets: int, lookahead: int = 0, reserved: int = 0) -> Plan:
    layers = [KINDS[name] for name in names for _ in range(2)]
    shape = ModelShape("small", "test", tuple(layers), max_length=LENGTH, weights_known=False)
    settings = Settings(batch_tokens=64, max_requests=ROWS, speculative_tokens=lookahead, reserved_pages=reserved)
    return make_plan(shape, settings, Budget(sheets=(sheets,)))


def ints(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


class MemoryMachine(RuleBasedStateMachine):
    """Rows grow by chunks, settle, preempt and end in any order; pins come and go; compaction may happen any time."""

    @initialize(
        names=st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=4, unique=True),
        sheets=st.integers(8, 60),
        lookahead=st.integers(0, 3),
        reserved=st.integers(0, 1),
    )
    def start(self, names: list[str], sheets: int, lookahead: int, reserved: int) -> None:
        self.plan = small_plan(names, sheets, lookahead, reserved)
        self.memory = StageMemory(self.plan.stages[0], self.plan, ROWS)
        self.settled, self.flying = [0] * ROWS, [0] * ROWS
        self.pins: list[tuple[int, int]] = []

    @rule(row=st.integers(0, ROWS - 1), chunk=st.integers(1, 64))
    def grow(self, row: int, chunk: int) -> None:
        settled, new = self.settled[row], self.flying[row] + chunk
        if new > self.plan.batch_tokens or settled + new > LENGTH:
            return
        ahead = min(self.plan.lookahead, LENGTH - settled - new)
        needs = self.memory.needs(ints(row), ints(settled), ints(new), ints(ahead))
        if self.memory.fitting(ints(row), needs):
            self.memory.grow(needs)
            self.flying[row] = new

    @rule(row=st.integers(0, ROWS - 1), share=st.floats(0, 1))
    def settle(self, row: int, share: float) -> None:
        done = round(self.flying[row] * share)
        self.settled[row] += done
        self.flying[row] -= done
        if self.settled[row]:
            self.memory.settle(ints(row), ints(self.settled[row]))

    @rule(row=st.integers(0, ROWS - 1))
    def end(self, row: int) -> None:
        held = {(kind, int(page)) for kind, table in enumerate(self.memory.tables) for page in table.held(row)}
        if not held & set(self.pins):
            self.memory.release(row)
            self.settled[row] = self.flying[row] = 0

    @rule(kind=st.integers(0, 3), choice=st.integers(0, 10_000))
    def pin(self, kind: int, choice: int) -> None:
        kind %= len(self.memory.tables)
        used = np.flatnonzero(self.memory.pool.shelves[kind].count(Holder.REQUEST))
        if len(used):
            page = int(used[choice % len(used)])
            self.memory.pool.hold(kind, ints(page), Holder.PIN)
            self.pins.append((kind, page))

    @precondition(lambda self: getattr(self, "pins", None))
    @rule()
    def unpin(self) -> None:
        kind, page = self.pins.pop()
        self.memory.pool.drop(kind, ints(page), Holder.PIN)

    @rule()
    def compact(self) -> None:
        expected = self.memory.pool.free_sheets + sheets_to_gain(self.memory)
        before = [[len(table.held(row)) for row in range(ROWS)] for table in self.memory.tables]
        fixed = self.fixed_pages()
        compact(self.memory)
        assert self.fixed_pages() == fixed
        assert self.memory.pool.free_sheets == expected
        assert before == [[len(table.held(row)) for row in range(ROWS)] for table in self.memory.tables]
        assert sheets_to_gain(self.memory) == 0
        self.fragmentation_is_bounded()

    def fixed_pages(self) -> list[list[int]]:
        """By kind: what something outside the tables knows by its number."""
        shelves = self.memory.pool.shelves
        return [np.flatnonzero((s.count(Holder.PIN) > 0) | (s.count(Holder.BACKEND) > 0)).tolist() for s in shelves]

    def fragmentation_is_bounded(self) -> None:
        """No kind holds a sheet more than its pages need, but for sheets with a pinned page (or the backend's own)."""
        for kind, shelf in enumerate(self.memory.pool.shelves):
            fixed = (shelf.count(Holder.PIN) > 0) | (shelf.count(Holder.BACKEND) > 0)
            movable = ~fixed.reshape(-1, shelf.pages_per_sheet).any(axis=1) & (self.memory.pool.owner == kind)
            used = int(shelf.used_in_sheet[movable].sum())
            assert movable.sum() <= -(-used // shelf.pages_per_sheet)

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "memory"):
            audit(self.memory, {row: f"request {row}" for row in range(ROWS)})

    @invariant()
    def rows_hold_their_demand(self) -> None:
        """After settling, a row holds exactly the pages that its demand counts."""
        if not hasattr(self, "memory"):
            return
        for row in range(ROWS):
            settled, new = self.settled[row], self.flying[row]
            for table in self.memory.tables:
                held = len(table.held(row))
                if not settled + new:
                    assert held == 0
                elif new:
                    ahead = min(self.plan.lookahead, LENGTH - settled - new)
                    need = table.kind.pages(counts(settled), counts(new), counts(ahead), table.plan.page_tokens)
                    assert held >= table.plan.groups * int(need)
                    assert len(np.unique(table.held(row))) == held


MemoryMachine.TestCase.settings = examples(60, stateful_step_count=40)
TestMemoryMachine = MemoryMachine.TestCase


def fill(plan: Plan, length: int) -> int:
    """How many requests in steady decode at `length` the real allocator holds, one by one until it refuses."""
    held = bound.concurrency(plan, length) + 2
    memories = [StageMemory(stage, plan, held) for stage in plan.stages if stage.kinds]
    for request in range(held):
        row, settled, new, ahead = ints(request), ints(length - 1), ints(1), ints(0)
        for memory in memories:
            for table in memory.tables:
                first = table.kind.first_page(settled, table.plan.page_tokens)
                table.kept[row] = table.kind.kept_pages(settled, table.plan.page_tokens)
                table.first[row] = table.end[row] = first
            needs = memory.needs(row, settled, new, ahead)
            kept = [t.plan.groups * int(t.kept[request]) for t in memory.tables]
            if memory.pool.sheets_short([need.total() + extra for need, extra in zip(needs, kept, strict=True)]):
                return request
            for index, (table, extra) in enumerate(zip(memory.tables, kept, strict=True)):
                sinks = memory.pool.take(index, extra)
                table.pages[request, :, : int(table.kept[request])] = sinks.reshape(table.plan.groups, -1)
            memory.grow(needs)
    return held


@pytest.mark.parametrize("name", catalogue_names())
def test_the_plans_concurrency_is_what_the_allocator_holds(name: str) -> None:
    """Plan equals pool: at 1k, 8k and the longest, exactly, for every model of the catalogue."""
    shape = read_model(name)
    small = make_plan(shape, Settings(), Budget(sheets=(1,))).stages[0]
    sheets = 3 * bound.minimum(small.kinds, min(8192, shape.max_length or 8192), 0)
    plan = make_plan(shape, Settings(), Budget(sheets=(sheets,)))
    for length in {1024, min(8192, plan.max_length), plan.max_length}:
        if length <= plan.max_length:
            assert fill(plan, length) == bound.concurrency(plan, length), length


@given(
    st.lists(st.sampled_from((1, 16, 64)), min_size=ROWS, max_size=ROWS),
    st.lists(st.sampled_from((0, 16, 64)), min_size=ROWS, max_size=ROWS),
    st.integers(8, 40),
)
def test_as_many_rows_fit_as_find_their_pages_one_after_another(new: list[int], held: list[int], sheets: int) -> None:
    """Whether one row lacks pages or many, and wherever in the order they stand."""
    plan = small_plan(["full", "window"], sheets)
    memory = StageMemory(plan.stages[0], plan, ROWS)
    for row, tokens in enumerate(held):
        needs = memory.needs(ints(row), ints(0), ints(tokens), ints(0))
        if memory.fitting(ints(row), needs):
            memory.grow(needs)
    rows = np.arange(ROWS)[::-1]
    needs = memory.needs(rows, 0 * rows, np.array(new), 0 * rows)
    totals = [[sum(need.among(rows[:count]).pages) for need in needs] for count in range(ROWS + 1)]
    assert memory.fitting(rows, needs) == max(n for n in range(ROWS + 1) if not memory.pool.sheets_short(totals[n]))


def test_the_audit_names_the_leaker() -> None:
    plan = small_plan(["full", "window"], 40)
    memory = StageMemory(plan.stages[0], plan, ROWS)
    memory.grow(memory.needs(ints(2), ints(0), ints(40), ints(0)))
    audit(memory, {2: "chat-7"})
    with pytest.raises(BooksDoNotBalance, match=r"held by 0 requests"):
        audit(memory, {})
    memory.pool.shelves[0].holders[memory.tables[0].held(2)[0]] += ONE[Holder.REQUEST]
    with pytest.raises(BooksDoNotBalance, match="the last of them chat-7; the books say 2"):
        audit(memory, {2: "chat-7"})


def test_a_page_has_one_address_and_pages_do_not_overlap() -> None:
    plan = small_plan(["full", "state", "window"], 12)
    stage = plan.stages[0]
    pool = StageMemory(stage, plan, ROWS).pool
    taken = []
    for kind, count in enumerate([5, 2, 3]):
        pages = pool.take(kind, count)
        begin = pool.stage.addresses(kind, pages).astype(np.int64) * 256
        taken += [(int(b), int(b) + stage.kinds[kind].page_bytes) for b in begin]
    taken.sort()
    assert all(end <= begin for (_, end), (begin, _) in pairwise(taken))
    assert taken[-1][1] <= stage.pool_bytes


def test_a_row_that_lacks_pages_of_one_kind_takes_none_of_the_next() -> None:
    """Two rows lack a sheet of the first kind each and nothing of the second, and two sheets are free: both fit."""
    plan = small_plan(["full", "window"], sheets=2)
    memory = StageMemory(plan.stages[0], plan, ROWS)
    whole = memory.stage.kinds[0].pages_per_sheet
    needs = [Need(ints(0, 1), counts(np.array([whole, whole]))), Need(ints(), counts(ints()))]
    assert memory.fitting(ints(0, 1), needs) == 2
    assert memory.fitting(ints(0, 1), [needs[0], Need(ints(1), counts(ints(1)))]) == 1


def test_compaction_leaves_pages_of_the_backend_where_they_are() -> None:
    """Its page is the only one in use of its sheet, and there is a hole in a fuller sheet."""
    plan = small_plan(["full", "state"], sheets=4, reserved=1)
    pool = (memory := StageMemory(plan.stages[0], plan, ROWS)).pool
    own, size = np.flatnonzero(pool.shelves[0].count(Holder.BACKEND)), pool.shelves[0].pages_per_sheet
    others = pool.take(0, 2 * size - 1)
    beside = others[others // size == own[0] // size]
    pool.drop(0, np.append(beside, others[-1]), Holder.REQUEST)
    assert size > 2
    assert pool.owner.tolist().count(0) == 2
    compact(memory)
    assert np.flatnonzero(pool.shelves[0].count(Holder.BACKEND)).tolist() == own.tolist()
