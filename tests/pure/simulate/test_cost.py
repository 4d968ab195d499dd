"""What a step costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_replay import MODEL, SPEED, at_speed, cost_of, plan_of, seconds_of

from quire.cli.main import main
from quire.core.errors import InputError
from quire.core.step import Capture
from quire.models.read import read_model
from quire.plan.make import make_plan
from quire.plan.settings import Budget, Settings
from quire.planner.devices import DEVICES, device_bytes
from quire.simulate.cost import EXPERT_EFFICIENCY, LAYER_SECONDS, cost_model
from quire.simulate.devices import DATASHEETS, Speed, speed_of

ENDLESS = 1e30


def test_a_lone_decode_reads_every_weight_once_and_its_live_set_once() -> None:
    cost = at_speed(cost_of(plan_of(), overhead=0.0), Speed(1.0, ENDLESS))
    weights = sum(layer.weight_bytes + layer.replicated_weight_bytes for layer in MODEL.layers) + MODEL.embedding_bytes
    token = 16 * 2 * 8 * 64 * 2
    assert seconds_of(cost, (999, 1)) == pytest.approx(weights + 1000 * token + token)


def test_a_prompt_multiplies_every_layer_and_sees_half_of_itself() -> None:
    cost = at_speed(cost_of(plan_of(), overhead=0.0), Speed(ENDLESS, 1.0))
    parameters = sum(layer.weight_bytes + layer.replicated_weight_bytes for layer in MODEL.layers) // 2
    head = MODEL.embedding_bytes // 2
    attention = 16 * 4 * 32 * 64 * 1000 * 1001 / 2
    assert seconds_of(cost, (0, 1000)) == pytest.approx(2 * parameters * 1000 + 2 * head + attention)


def test_the_overhead_is_added_once_a_step() -> None:
    plan = plan_of()
    fast, slow = cost_of(plan, overhead=0.0), cost_of(plan, overhead=0.5)
    assert seconds_of(slow, (0, 7), (9, 1)) - seconds_of(fast, (0, 7), (9, 1)) == pytest.approx(0.5)


def test_each_layer_has_its_share_of_the_overhead_where_nobody_says_how_much(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = plan_of()
    told, usual = cost_of(plan, overhead=0.0), cost_model(plan, MODEL, SPEED, None, 1.0)
    assert seconds_of(usual, (9, 1)) - seconds_of(told, (9, 1)) == pytest.approx(len(MODEL.layers) * LAYER_SECONDS)
    with pytest.raises(SystemExit):
        main(["simulate", "--help"])
    assert f"{LAYER_SECONDS * 1e3:g} per layer" in " ".join(capsys.readouterr().out.split())


def test_a_window_is_read_no_further_back_than_it_reaches() -> None:
    model = read_model("gemma-3-27b")
    plan = make_plan(model, Settings(), Budget(memory_bytes=device_bytes("h200")))
    cost = cost_model(plan, model, Speed(1.0, ENDLESS), 0.0, 1.0)
    full = next(kind for kind in cost.stages[0].kinds if kind.kind.grows)
    longer = seconds_of(cost, (20_000, 1)) - seconds_of(cost, (10_000, 1))
    assert longer == pytest.approx(10_000 * full.read_bytes)


def test_layers_that_share_a_memory_all_read_it() -> None:
    model = read_model("gemma-3n-e2b")
    plan = make_plan(model, Settings(), Budget(memory_bytes=device_bytes("h200")))
    assert plan.stages[0].aliases
    cost = cost_model(plan, model, Speed(1.0, ENDLESS), 0.0, 1.0)
    read = sum(kind.read_bytes for kind in cost.stages[0].kinds)
    assert read > sum(kind.unit_bytes for kind in plan.stages[0].kinds)


def test_ranks_share_the_bytes_and_stages_follow_one_another() -> None:
    alone = seconds_of(cost_of(plan_of(), overhead=0.0), (1000, 1))
    ranks = seconds_of(cost_of(plan_of(settings=Settings(tensor_parallel=4)), overhead=0.0), (1000, 1))
    stages = seconds_of(cost_of(plan_of(settings=Settings(pipeline_parallel=2)), overhead=0.0), (1000, 1))
    assert ranks == pytest.approx(alone / 4, rel=0.01)
    assert stages == pytest.approx(alone, rel=0.01)


def test_few_tokens_touch_few_experts_and_many_touch_all() -> None:
    plan = plan_of()
    dense, sparse = (at_speed(cost_of(plan, overhead=0.0, active=a), Speed(1.0, ENDLESS)) for a in (1.0, 0.1))
    body = dense.stages[0].weight_bytes
    few, many = (seconds_of(dense, row) - seconds_of(sparse, row) for row in ((0, 1), (0, 500)))
    assert few == pytest.approx(body * (1 - 0.1 / EXPERT_EFFICIENCY))
    assert many == pytest.approx(body * (1 - 1 / EXPERT_EFFICIENCY))


def test_a_step_takes_the_time_of_its_weights_up_to_as_many_tokens_as_the_device_multiplies_meanwhile() -> None:
    """Of a dense model, as many as it has FLOPs for each byte; with experts more, because more tokens read more."""
    ratio, sparse = 50.5, read_model("qwen3-30b-a3b")
    dense = at_speed(cost_of(plan_of(), overhead=0.0), Speed(1.0, ratio))
    assert dense.memory_bound_tokens() == 50
    plan = make_plan(sparse, Settings(), Budget(memory_bytes=device_bytes("h200")))
    assert cost_model(plan, sparse, Speed(1.0, ratio), 0.0).memory_bound_tokens() > 300
    assert at_speed(dense, Speed(1.0, 0.1)).memory_bound_tokens() == 1


@pytest.mark.parametrize("tokens", [1, 9])
def test_experts_that_nobody_chooses_are_not_read(tokens: int) -> None:
    """Without being told: the shape knows. Layers of both stages have experts, and attention has none."""
    model = read_model("qwen3-30b-a3b")
    plan = make_plan(model, Settings(pipeline_parallel=2), Budget(memory_bytes=device_bytes("h200")))
    all_read, known = (cost_model(plan, model, Speed(1.0, ENDLESS), 0.0, share) for share in (1.0, None))
    experts, touched = 48 * 128 * 3 * 2048 * 768 * 2, 1 - (1 - 8 / 128) ** tokens
    saved = seconds_of(all_read, (0, tokens)) - seconds_of(known, (0, tokens))
    assert saved == pytest.approx(experts * (1 - touched / EXPERT_EFFICIENCY))
    weights = sum(layer.weight_bytes + layer.replicated_weight_bytes for layer in model.layers)
    assert known.figures()["active_share"] == pytest.approx(1 - experts * (1 - 8 / 128) / weights)


def test_weights_that_nobody_knows_take_no_time_at_all() -> None:
    """Not even where a shape says what its experts weigh."""
    shape = replace(read_model("qwen3-30b-a3b"), weights_known=False)
    plan = make_plan(shape, Settings(), Budget(pool_bytes=1 << 30))
    assert [stage.expert_bytes for stage in cost_model(plan, shape, SPEED).stages] == [0]


def test_products_and_attention_follow_one_another() -> None:
    """Rows enough that products are bound by multiplying do not hide what attention reads."""
    plan = plan_of()
    rows = [(4000, 1)] * 300
    both, reading, multiplying = (
        seconds_of(at_speed(cost_of(plan, overhead=0.0), speed), *rows)
        for speed in (Speed(1e12, 1e14), Speed(1e12, ENDLESS), Speed(ENDLESS, 1e14))
    )
    assert max(reading, multiplying) < both < reading + multiplying


@pytest.mark.parametrize("faster", [Speed(2e12, 1e14), Speed(1e12, 2e14)])
def test_a_faster_device_is_never_slower(faster: Speed) -> None:
    cost = cost_of(plan_of())
    random = np.random.default_rng(3)
    for _ in range(50):
        rows = [(int(random.integers(0, 5000)), int(random.integers(1, 600))) for _ in range(5)]
        assert seconds_of(at_speed(cost, faster), *rows) <= seconds_of(cost, *rows)


def test_every_device_that_can_be_planned_for_has_a_speed() -> None:
    assert set(DATASHEETS) == set(DEVICES)
    assert speed_of("H200", None, None).bytes_per_second == pytest.approx(4.32e12)


def test_figures_of_the_user_stand_as_they_are() -> None:
    assert speed_of(None, 4340, 600) == Speed(4340e9, 600e12)
    assert speed_of("h200", 4340, None).bytes_per_second == 4340e9


@pytest.mark.story
@pytest.mark.parametrize(
    ("device", "gigabytes", "teraflops", "asked"),
    [
        (None, 100, None, "how fast is the device? give --flops, or"),
        (None, None, 100, "how fast is the device? give --bandwidth, or"),
        ("cpu", None, None, "how fast is cpu? give --bandwidth and --flops, or"),
    ],
)
def test_all_that_is_not_known_of_a_device_is_asked_for_at_once(
    device: str | None, gigabytes: float | None, teraflops: float | None, asked: str
) -> None:
    """With the names of devices that are known."""
    with pytest.raises(InputError) as told:
        speed_of(device, gigabytes, teraflops)
    assert str(told.value) == f"{asked} a --device with known figures: {', '.join(DATASHEETS)}"


def test_a_captured_state_is_written_once_more() -> None:
    """On the stage and of the kind that is named, in every layer. Red if captures cost nothing, or what a row costs."""
    model = read_model("qwen3-next-80b-a3b")
    plan = make_plan(model, Settings(pipeline_parallel=5), Budget(memory_bytes=device_bytes("h200")))
    cost = cost_model(plan, model, Speed(1.0, ENDLESS), 0.0, 1.0)
    step = (np.array([0]), np.array([1000]), 0)
    kinds = [next(kind for kind, one in enumerate(stage.kinds) if one.kind.kind == "state") for stage in plan.stages]
    captures = [Capture(0, 100, stage, kind, np.array([0])) for stage, kind in enumerate(kinds)]
    states = [stage.kinds[kind].unit_bytes for stage, kind in zip(plan.stages, kinds, strict=True)]
    more = cost.seconds(*step, [captures[0], captures[0], captures[1]]) - cost.seconds(*step)
    assert states[0] != states[1]
    assert more == pytest.approx(2 * states[0] + states[1])
