"""8 bits: what comes back is near what went in, and the engine's promises hold on it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from quire.core.dtypes import DType
from quire.core.errors import PlanError
from quire.models.read import read_config
from quire.plan.bound import concurrency
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings
from quire.worker.backends.choice import choose
from quire.worker.model.model import TorchModel
from quire.worker.pages.arena import Arena, PartView
from quire.worker.pages.quantised import LARGEST, decode, encode
from tiny_models import OUTPUTS, Service, reference

HALF_A_STEP = 2**-4
"""Of three bits of mantissa, as a share of the number."""


def plan_of(name: str, batch_tokens: int = 512) -> Plan:
    shape = read_config(json.loads(reference(name).config.to_json_string()), name)
    settings = Settings(
        max_length=96, max_requests=8, batch_tokens=batch_tokens, kv_dtype=DType.FP8, match_unit_tokens=16,
        page_tokens={"": 16},
    )  # fmt: skip
    return make_plan(shape, settings, Budget(pool_bytes=8 << 20))


def part_of(name: str, part: str) -> PartView:
    return Arena(plan_of(name).stages[0], torch.device("cpu")).layers[0][part]


def there_and_back(part: PartView, values: torch.Tensor) -> torch.Tensor:
    return decode(part, encode(part, values).view(len(values), *part.tensor.shape[2:]), torch.float32)


@pytest.mark.parametrize("scale", [0.25, 1.0, 16.0])
def test_keys_come_back_within_half_a_step(scale: float) -> None:
    torch.manual_seed(0)
    part = part_of("llama", "key")
    assert part.scales is not None
    values = torch.randn(50, 2, 16) * scale
    back = there_and_back(replace(part, scales=part.scales * scale), values)
    error = (back - values).abs()
    assert float((error / values.abs())[values.abs() > scale * 2**-6].max()) <= HALF_A_STEP
    assert float(error.max()) > 0


def test_numbers_that_are_too_large_become_the_largest() -> None:
    part = part_of("llama", "key")
    back = there_and_back(part, torch.full((1, 2, 16), -1e6))
    assert torch.equal(back, torch.full((1, 2, 16), -LARGEST))


@pytest.mark.parametrize("part_name", ["latent", "index"])
def test_latents_of_any_size_come_back_within_half_a_step(part_name: str) -> None:
    """Each token has its own scale: a large one does not drown the others. So have index keys."""
    torch.manual_seed(0)
    part = part_of("deepseek_v32", part_name)
    values = torch.randn(3, 1, 16) * torch.tensor([1e-12, 1.0, 1e12])[:, None, None]
    values[0, 0, :4] = 0
    back = there_and_back(part, values)
    large = values.abs() > values.abs().amax(-1, keepdim=True) * 2**-14
    assert float(((back - values).abs() / values.abs())[large].max()) <= HALF_A_STEP
    assert torch.equal(back[0, 0, :4], torch.zeros(4))


@pytest.mark.parametrize("name", ["gpt_oss", "deepseek_v3", "deepseek_v32"])
def test_tokens_do_not_depend_on_how_prompts_are_cut_or_found_again(name: str) -> None:
    service, cut = Service(name, plan_of(name)), Service(name, plan_of(name, batch_tokens=7))
    prompts = service.reference.prompts
    told = []
    for runs, label in ((service, "cold"), (service, "warm"), (cut, "cut")):
        streams = runs.send(prompts, OUTPUTS, label)
        runs.engine.drain()
        told.append([stream.tokens().tolist() for stream in streams])
    assert told[0] == told[1] == told[2]


def test_heads_have_scales_of_their_own_that_fit_what_the_model_makes() -> None:
    """Keys 4,096 times as large, queries as much smaller: no score changes, and no bit of what is stored either."""
    services = [Service("llama", plan_of("llama")) for _ in range(2)]
    model, grown = (service.runner.model for service in services)
    for name, module in grown.model.named_modules():
        if name.endswith(("k_proj", "q_proj")):
            module.weight.data *= 4096.0 if name.endswith("k_proj") else 1 / 4096.0
    grown = TorchModel(grown.model, services[1].runner.arena)
    services[1].runner.model = grown
    scales = [one.context.arena.layers[0]["key"].scales for one in (model, grown)]
    assert torch.equal(scales[1], 4096.0 * scales[0])
    assert model.scales != grown.scales
    told = []
    for service in services:
        streams = service.send(service.reference.prompts, OUTPUTS)
        service.engine.drain()
        told.append([stream.tokens().tolist() for stream in streams])
    assert told[0] == told[1]


def test_eight_bit_integers_are_planned_and_not_run() -> None:
    shape = read_config(json.loads(reference("llama").config.to_json_string()), "llama")
    plan = make_plan(shape, Settings(max_length=64, kv_dtype=DType.INT8), Budget(pool_bytes=1 << 20))
    with pytest.raises(PlanError, match="reference does not read int8"):
        choose(plan.stages[0], "cpu")


def test_as_many_more_requests_fit_as_the_plan_says() -> None:
    shape = read_config(json.loads(reference("llama").config.to_json_string()), "llama")
    plans = [
        make_plan(shape, Settings(max_length=64, max_requests=256, kv_dtype=dtype, page_tokens={"": 16}),
                  Budget(pool_bytes=256 << 10))
        for dtype in (DType.BF16, DType.FP8)
    ]  # fmt: skip
    many = [concurrency(plan, 64) for plan in plans]
    assert many[1] == pytest.approx(2 * many[0], abs=1)
    assert many[0] > 2
