"""What one process of a group has, and what it takes of a step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from quire.core.step import Capture, Step, TableView
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings
from quire.worker.ranks.share import WHOLE, Share, ledger_of, memory_of, own_part, shares_of, stage_of
from tiny_models import config_of, shape_of

ONE = np.ones(1, dtype=np.int64)


def plan_of(stage_layers: tuple[int, ...], ranks: int = 2) -> Plan:
    settings = Settings(
        max_length=96, tensor_parallel=ranks, pipeline_parallel=len(stage_layers), stage_layers=stage_layers
    )
    return make_plan(shape_of("llama", config_of("llama")), settings, Budget(pool_bytes=8 << 20))


def step_of(*stages: str) -> Step:
    """A step in which each stage's table, copy, clear and capture has its own pages."""
    pages = {stage: (1 + number) * 100 * ONE for number, stage in enumerate(stages)}
    tables = tuple((TableView(np.full((1, 1, 1), own[0], dtype=np.int32), 0),) for own in pages.values())
    moved = [(stage, 0, own, own + 1) for stage, own in enumerate(pages.values())]
    return Step(
        0, 0 * ONE, 0 * ONE, ONE, ONE > 0, ONE, np.zeros(1, dtype=np.int32),
        tables=tables,
        copies=tuple(moved),
        clears=tuple((stage, kind, source) for stage, kind, source, _ in moved),
        captures=tuple(Capture(0, 1, stage, 0, source) for stage, _, source, _ in moved),
    )  # fmt: skip


def test_every_rank_of_the_plan_has_a_share_and_its_ledger() -> None:
    """Red if shares were numbered otherwise than the plan's ranks."""
    plan = plan_of((1, 3))
    shares = shares_of(plan)
    assert [(share.stage, share.rank) for share in shares] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for share in shares:
        own = ledger_of(plan, share)
        assert (own.stage, own.tensor_rank) == (share.stage, share.rank)
        assert stage_of(plan, share).layers == (1, 3)[share.stage]
    assert [share.leads for share in shares] == [True, False, False, False]


def test_a_stage_takes_its_own_tables_copies_clears_and_captures() -> None:
    """Red if a stage copied or cleared pages of another, whose pool has other contents."""
    plan, step = plan_of((2, 2), ranks=1), step_of("first", "second")
    for share in shares_of(plan):
        own = own_part(step, memory_of(plan, share))
        expected = 100 * (1 + share.stage)
        assert own.tables[0][0].addresses.item() == expected
        (copied,), (cleared,), (captured,) = own.copies, own.clears, own.captures
        assert [moved[:2] for moved in (copied, cleared)] == [(0, 0), (0, 0)]
        assert (copied[2], copied[3], cleared[2], captured.pages) == (expected, expected + 1, expected, expected)
        assert captured.stage == 0


def test_steps_count_only_stages_that_keep_something() -> None:
    """A plan whose first stage has no layers: the second one's tables are the step's first. Red if a stage took them
    by its own number."""
    plan = plan_of((0, 4), ranks=1)
    first, second = shares_of(plan)
    assert (memory_of(plan, first), memory_of(plan, second)) == (None, 0)
    step = step_of("second")
    assert own_part(step, memory_of(plan, second)) is step
    nothing = own_part(step, memory_of(plan, first))
    assert (nothing.tables, nothing.copies, nothing.clears, nothing.captures) == (((),), (), (), ())


def test_a_step_of_one_stage_stays_as_it_is() -> None:
    """Red if steps were made anew where nobody shares a model."""
    plan = replace(plan_of((4,), ranks=1))
    step = step_of("only")
    assert own_part(step, memory_of(plan, WHOLE)) is step
    assert WHOLE.is_whole
    assert not Share(1, 2, 0, 1).is_whole


@pytest.mark.parametrize("stage", [0, 1])
def test_the_last_stage_is_the_one_with_the_head(stage: int) -> None:
    """Red if logits were expected of another stage."""
    assert Share(0, 1, stage, 2).is_last == (stage == 1)
