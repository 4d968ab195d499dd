"""A kind of the test tree on the CPU reference: tokens are those of transformers with the same mask."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from pair_kind import known
from quire.core.dtypes import DType
from quire.core.events import RequestAdmitted
from quire.core.memory import Memory
from quire.core.request import Request
from quire.engine.engine import Engine
from quire.models.shape import ModelShape
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings
from quire.worker.model.model import NAME, TorchModel
from quire.worker.pages.arena import Arena
from quire.worker.steps.runner import TorchRunner
from tiny_models import LONGEST, OUTPUTS, PAGE, Reference, reference, shape_of

HALF = 11
"""Neither divides a page nor is divided by one."""


@pytest.fixture(autouse=True)
def _known() -> Iterator[None]:
    with known():
        yield


def with_pairs(shape: ModelShape) -> ModelShape:
    """The model with such a memory in each second layer."""
    layers = list(shape.layers)
    for place in range(0, len(layers), 2):
        (memory,) = layers[place].memories
        layers[place] = replace(layers[place], memories=(Memory("pair", memory.parts, others=(("half", HALF),)),))
    return replace(shape, layers=tuple(layers))


def pair_plan(own: Reference, sheets: int | None = None) -> Plan:
    shape = with_pairs(shape_of("llama", own.config))
    settings = Settings(
        max_length=LONGEST,
        max_requests=8,
        batch_tokens=24,
        kv_dtype=DType.FP32,
        page_tokens={"": PAGE},
        match_unit_tokens=PAGE,
    )
    return make_plan(shape, settings, Budget(pool_bytes=8 << 20) if sheets is None else Budget(sheets=(sheets,)))


def engine_on(own: Reference, plan: Plan) -> Engine:
    arena = Arena(plan.require_fit().stages[0], torch.device("cpu"))
    arena.bytes.view(torch.float32).fill_(float("nan"))
    model = copy.deepcopy(own.model)
    model.set_attn_implementation(NAME)
    return Engine(plan, TorchRunner(plan, TorchModel(model, arena), arena))


@torch.inference_mode()
def expected(own: Reference, prompt: np.ndarray) -> list[int]:
    """Greedy tokens of transformers' own attention, each second layer with the mask of the definition."""
    model, ids = copy.deepcopy(own.model), prompt.tolist()
    for place, layer in enumerate(model.model.layers):
        if place % 2 == 0:
            layer.self_attn.register_forward_pre_hook(_mask_pairs, with_kwargs=True)
    for _ in range(OUTPUTS):
        ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def _mask_pairs(_module: object, arguments: tuple, options: dict) -> tuple[tuple, dict]:
    tokens = options["hidden_states"].shape[1]
    query, token = torch.arange(tokens)[:, None], torch.arange(tokens)[None, :]
    seen = (token <= query) & (token // HALF >= query // HALF - 1)
    mask = torch.zeros(tokens, tokens).masked_fill(~seen, torch.finfo(torch.float32).min)
    return arguments, {**options, "attention_mask": mask[None, None]}


@pytest.mark.parametrize("is_tight", [False, True])
def test_tokens_are_those_of_its_mask(is_tight: bool) -> None:
    """Alone, together, in chunks, after a prefix hit, and preempted in a pool that holds little more than one."""
    own = reference("llama")
    plan = pair_plan(own)
    if is_tight:
        sheets = next(count for count in range(1, 4096) if pair_plan(own, count).fits)
        plan = pair_plan(own, sheets + 2)
    assert any(kind.name == f"pair-{HALF}" for kind in plan.stages[0].kinds)
    engine, admitted = engine_on(own, plan), []
    engine.scheduler.events.subscribe(lambda e: admitted.append(e) if isinstance(e, RequestAdmitted) else None)
    right = [expected(own, prompt) for prompt in own.prompts]
    assert right != own.tokens, "the mask changes what is generated"
    for label in ("cold", "warm"):
        streams = [
            engine.submit(Request(f"{label} {place}", prompt, OUTPUTS)) for place, prompt in enumerate(own.prompts)
        ]
        engine.drain()
        assert [stream.tokens().tolist() for stream in streams] == right
    assert is_tight or any(one.hit_tokens for one in admitted if one.request.startswith("warm"))
