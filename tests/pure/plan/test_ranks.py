"""Tensor and pipeline parallel ranks, planned together."""

from __future__ import annotations

from dataclasses import replace

import pytest
from shapes import FULL, WINDOW, attention, latent, model

from quire.core.errors import PlanError
from quire.core.units import GIB
from quire.models.read import read_model
from quire.models.shape import Layer
from quire.plan import bound
from quire.plan.file import layout_fingerprint
from quire.plan.make import make_plan
from quire.plan.settings import Budget, Settings
from quire.planner.document import index_view, stage_index_view

POOL = Budget(pool_bytes=8 * GIB)


def test_heads_are_divided_and_latents_are_not() -> None:
    split = make_plan(model([FULL] * 4), Settings(tensor_parallel=4), POOL)
    assert split.bytes_per_token == make_plan(model([FULL] * 4), Settings(), POOL).bytes_per_token / 4
    whole = make_plan(model([latent()] * 4), Settings(tensor_parallel=4), POOL)
    assert whole.bytes_per_token == make_plan(model([latent()] * 4), Settings(), POOL).bytes_per_token


def test_heads_that_do_not_divide_leave_rows_idle_and_say_where() -> None:
    """10 KV heads on 4 ranks: 3, 3, 2, 2; pages have room for 3 everywhere, so the last two ranks idle a third."""
    plan = make_plan(model([attention("full", 10, 128)] * 4, query_heads=40), Settings(tensor_parallel=4), POOL)
    assert plan.bytes_per_token == 4 * 3 * 128 * 2 * 2
    idle = [rank.idle_bytes for rank in plan.ranks]
    assert idle[:2] == [0, 0]
    assert idle[2] == idle[3] == plan.stages[0].pool_bytes // 3


@pytest.mark.parametrize(("heads", "query_heads", "ranks"), [(3, 9, 4), (8, 12, 16)])
def test_heads_that_cannot_be_split_are_refused_with_the_numbers(heads: int, query_heads: int, ranks: int) -> None:
    with pytest.raises(PlanError, match=rf"cannot be split over {ranks} ranks"):
        make_plan(model([attention("full", heads)], query_heads=query_heads), Settings(tensor_parallel=ranks), POOL)


def test_uneven_stages_name_the_bottleneck_and_show_idle_bytes() -> None:
    layers = [FULL] * 24 + [WINDOW] * 8
    plan = make_plan(model(layers), Settings(pipeline_parallel=2, stage_layers=(24, 8)), POOL)
    assert plan.bottleneck_stage == 0
    assert plan.max_length == plan.stages[0].max_length <= plan.stages[1].max_length
    assert plan.ranks[1].idle_bytes > POOL.pool_bytes // 2  # type: ignore[operator]


def test_a_stage_without_memory_is_planned_and_never_the_bottleneck() -> None:
    plan = make_plan(model([FULL] * 4 + [Layer(())] * 4), Settings(pipeline_parallel=2), POOL)
    assert plan.stages[1].sheets == 0
    assert plan.bottleneck_stage == 0
    assert bound.concurrency(plan, 1024) > 0


def test_an_override_counts_sheets_per_stage() -> None:
    plan = make_plan(model([FULL] * 8), Settings(pipeline_parallel=2), Budget(sheets=(10, 20)))
    assert [stage.sheets for stage in plan.stages] == [10, 20]
    with pytest.raises(PlanError, match="3 numbers for 2 stages"):
        make_plan(model([FULL] * 8), Settings(pipeline_parallel=2), Budget(sheets=(1, 2, 3)))


def test_an_override_larger_than_the_memory_is_refused() -> None:
    """A peer accepts it and dies later."""
    small = Budget(memory_bytes=4 * GIB, sheets=(1_000_000,))
    with pytest.raises(PlanError, match="but the memory leaves"):
        make_plan(model([FULL] * 8), Settings(), small)
    with pytest.raises(PlanError, match="but the memory leaves"):
        make_plan(model([FULL] * 8), Settings(), Budget(memory_bytes=4 * GIB, pool_bytes=8 * GIB))


def test_the_ledger_closes_on_the_memory_to_the_byte() -> None:
    """Every byte of the device is on some line, and a larger share of weights leaves a smaller pool."""
    heavy = [replace(FULL, weight_bytes=GIB)] * 8
    plan = make_plan(model(heavy, weights_known=True), Settings(), Budget(memory_bytes=16 * GIB))
    ledger = plan.ranks[0].ledger
    assert sum(line.bytes for line in ledger) == 16 * GIB
    lines = {line.name: line.bytes for line in ledger}
    assert lines["weights"] == 8 * GIB
    assert lines["pool"] == plan.stages[0].pool_bytes
    assert lines["margin"] >= int(16 * GIB * 0.08)


def test_layers_that_share_memory_keep_none_and_stay_on_one_stage() -> None:
    """A shared layer adds no bytes; a split between it and its source is refused with the layers' numbers."""
    layers = [FULL, FULL, Layer((), shares_with=1), Layer((), shares_with=0)]
    plan = make_plan(model(layers), Settings(), POOL)
    assert plan.bytes_per_token == make_plan(model([FULL] * 2), Settings(), POOL).bytes_per_token
    with pytest.raises(PlanError, match="layer 2 shares the memory of layer 1, which lies on another stage"):
        make_plan(model(layers), Settings(pipeline_parallel=2), POOL)


def test_a_plan_says_which_layer_reads_whose_memory() -> None:
    """Two models that share differently must not pass for each other, in a plan or on a tier."""
    plans = [make_plan(model([FULL, FULL, Layer((), shares_with=source)]), Settings(), POOL) for source in (0, 1)]
    assert [plan.stages[0].aliases for plan in plans] == [((2, 0),), ((2, 1),)]
    assert layout_fingerprint(plans[0]) != layout_fingerprint(plans[1])


def test_a_stage_has_room_for_hidden_states_that_it_gets_and_passes_on() -> None:
    """Of two steps, 2 bytes each. Red if the ledger of a pipeline is that of one device."""
    shape = replace(model([FULL] * 8), hidden_size=5120)
    plans = [make_plan(shape, Settings(pipeline_parallel=stages, batch_tokens=1024), POOL) for stages in (1, 2)]
    staging = [{line.bytes for rank in plan.ranks for line in rank.ledger if line.name == "staging"} for plan in plans]
    assert staging[1] == {size + 2 * 1024 * 2 * 5120 for size in staging[0]}


def test_idle_bytes_are_told_against_what_the_whole_plan_holds() -> None:
    """The stage with the shortest length need not be the one that holds fewest requests of 8k."""
    layers = [FULL] * 8 + [attention("window", window=8192)] * 24
    settings = Settings(pipeline_parallel=2, stage_layers=(8, 24))
    first, second = make_plan(model(layers), settings, Budget(sheets=(2500, 1000))).ranks
    assert first.idle_bytes > first.pool_bytes // 2
    assert second.idle_bytes == 0


def test_no_rank_is_idler_than_its_pool() -> None:
    uneven = model([attention("full", 10)] * 8, query_heads=40)
    plan = make_plan(uneven, Settings(tensor_parallel=4, pipeline_parallel=2, stage_layers=(7, 1)), POOL)
    assert all(rank.idle_bytes <= rank.pool_bytes for rank in plan.ranks)


def test_a_pool_that_tables_cannot_address_is_refused_and_memory_beyond_it_is_left() -> None:
    """Addresses are signed 32-bit counts of 256 bytes: 512 GiB."""
    with pytest.raises(PlanError, match=r"512\.00 GiB"):
        make_plan(model([FULL] * 8), Settings(), Budget(pool_bytes=513 * GIB))
    plan = make_plan(model([FULL] * 8), Settings(), Budget(memory_bytes=2048 * GIB))
    assert plan.stages[0].pool_bytes <= 512 * GIB


def test_an_index_view_must_hold_on_every_stage() -> None:
    bamba = read_model("bamba-9b")
    settings = Settings(pipeline_parallel=4)
    plan = make_plan(bamba, settings, Budget(sheets=(5, 5000, 5000, 5000)))
    views = {stage_index_view(stage) == "yes" for stage in plan.stages}
    assert views == {True, False}
    assert index_view(plan).startswith("no, because")


def test_drafts_are_planned_only_when_speculation_asks() -> None:
    shape = model([FULL] * 4, draft_layers=(FULL,))
    assert make_plan(shape, Settings(), POOL).bytes_per_token == 4 * 4096
    assert make_plan(shape, Settings(speculative_tokens=2), POOL).bytes_per_token == 5 * 4096


@pytest.mark.parametrize("layers", [(3, 3), (1, 2, 3), (7, -1)])
def test_stage_layers_must_add_up(layers: tuple[int, ...]) -> None:
    with pytest.raises(PlanError, match="must be 2 numbers that add up to 8 layers"):
        make_plan(model([FULL] * 8), Settings(pipeline_parallel=2, stage_layers=layers), POOL)
