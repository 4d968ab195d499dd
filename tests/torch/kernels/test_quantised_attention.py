"""Keys, values and latents in 8 bits: kernels store what the reference stores, and read it alike."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from quire.core.dtypes import DType
from quire.core.step import Step, TableView
from quire.models.read import read_config
from quire.plan.make import make_plan
from quire.plan.plan import StagePlan
from quire.plan.settings import Budget, Settings
from quire.worker.backends.attention import Scores, for_each_reading, gather, mix, write
from quire.worker.backends.batch import KindBatch, Reading, make_batch
from quire.worker.backends.choice import REFERENCE, Backend
from quire.worker.backends.triton_backend import Triton
from quire.worker.pages.arena import Arena, PartView
from quire.worker.pages.quantised import EIGHT, decode
from quire.worker.support.tiny import tiny_config

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
COUNTS = ((20, 7), (1, 5), (1, 1))
"""Of two rows, step after step."""
TOLERANCE = {torch.float32: (0.0, 1e-5), torch.bfloat16: (2**-7, 2**-11)}
"""By dtype of queries: (of results, of values around 1). Results in bf16 have 8 bits, which the interpreter cuts off
instead of rounding; chances, in fp16 there, have 11."""
LATENT_TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2**-6}
"""Of the whole: with queries in bf16, latents times their scales, chances and results are cut to 8 bits, one by one."""


def stage_of(name: str) -> StagePlan:
    shape = read_config(json.loads(tiny_config(name).to_json_string()), name)
    settings = Settings(max_length=64, max_requests=2, kv_dtype=DType.FP8, page_tokens={"": 16})
    return make_plan(shape, settings, Budget(pool_bytes=1 << 20)).require_fit().stages[0]


class Layer:
    """The first layer of some kind on one backend, over an arena whose every byte is a NaN."""

    def __init__(self, stage: StagePlan, backend: Backend, scales: tuple[float, float]) -> None:
        self.stage, self.backend = stage, backend
        self.arena = Arena(stage, DEVICE)
        self.arena.bytes.fill_(0xFF)
        names = ("latent", "rope") if stage.kinds[0].kind.kind == "latent" else ("key", "value")
        held = self.arena.layers[stage.kinds[0].manifest[0].layer]
        self.parts = tuple(_scaled(held[name], scale) for name, scale in zip(names, scales, strict=True))

    def step(self, starts: np.ndarray, counts: np.ndarray) -> KindBatch:
        each, ones = np.arange(2), np.ones(2, dtype=np.int64)
        tables = []
        for number, kind in enumerate(self.stage.kinds):
            pages = np.random.default_rng(1).permutation(2 * kind.groups * 4)
            tables.append(TableView(self.stage.addresses(number, pages).reshape(2, kind.groups, 4), 0))
        ids = np.zeros(counts.sum(), dtype=np.int32)
        step = Step(0, each, starts, counts, ones.astype(np.bool_), ones, ids)
        prepares = [self.backend.prepare] * len(tables)
        return make_batch(step, self.stage, tuple(tables), DEVICE, prepares).kinds[0]


def _scaled(part: PartView, scale: float) -> PartView:
    """Heads have different ones."""
    if part.scales is None:
        return part
    return replace(part, scales=scale * 2.0 ** torch.arange(len(part.scales), device=DEVICE))


def both(name: str, scales: tuple[float, float] = (1.0, 1.0)) -> tuple[Layer, Layer]:
    stage = stage_of(name)
    return Layer(stage, REFERENCE, scales), Layer(stage, Triton(), scales)


def random(counts: np.ndarray, heads: int, width: int, size: float = 1.0) -> torch.Tensor:
    return torch.randn(int(counts.sum()), heads, width, device=DEVICE) * size


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", ["llama", "gpt_oss"])
def test_keys_and_values_in_8_bits_are_stored_and_read_alike(name: str, dtype: torch.dtype) -> None:
    """With scales that matter: keys are too large for 8 bits, values too small. The reference computes in fp32, with
    the same numbers: queries in bf16 are multiplied as fp16."""
    torch.manual_seed(0)
    rtol, atol = TOLERANCE[dtype]
    reference, kernels = both(name, (64.0, 2**-8))
    starts = np.zeros(2, dtype=np.int64)
    for counts in map(np.array, COUNTS):
        new = random(counts, 4, 16), random(counts, 2, 16, 3e3), random(counts, 2, 16, 1e-3)
        asked = [tuple(one.to(dtype).to(held) for one in new) for held in (torch.float32, dtype)]
        outs = [
            layer.backend.attend(layer.step(starts, counts), layer.parts, query, (key, value), Scores(1e-3))
            for layer, (query, key, value) in zip((reference, kernels), asked, strict=True)
        ]
        torch.testing.assert_close(outs[1].float(), outs[0], rtol=rtol, atol=atol * 1e-3)
        starts = starts + counts
    stored = [layer.arena.bytes.view(EIGHT).float() for layer in (reference, kernels)]
    torch.testing.assert_close(*stored, rtol=0, atol=0, equal_nan=True)
    assert float(outs[0].abs().max()) > 1e-4


def absorbed(
    layer: Layer, step: KindBatch, query: torch.Tensor, new: tuple[torch.Tensor, torch.Tensor], scores: Scores
) -> torch.Tensor:
    for part, values in zip(layer.parts, new, strict=True):
        write(step, part, values)

    def answer(reading: Reading, asked: torch.Tensor) -> torch.Tensor:
        latents, ropes = (gather(reading, part, query.dtype) for part in layer.parts)
        return mix(asked, torch.cat([latents, ropes], dim=-1), latents, reading.mask, scores)

    return for_each_reading(step, query, new[0].shape[2], answer)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_latents_in_8_bits_are_stored_and_read_alike(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    reference, kernels = both("deepseek_v3")
    starts = np.zeros(2, dtype=np.int64)
    for counts in map(np.array, COUNTS):
        query, latent = (one.to(dtype) for one in (random(counts, 4, 24), random(counts, 1, 16, 50.0)))
        rope = random(counts, 1, 8).bfloat16()
        asked = reference.step(starts, counts), query.float(), (latent.float(), rope), Scores(1e-2)
        expected = absorbed(reference, *asked)
        out = kernels.backend.attend(kernels.step(starts, counts), kernels.parts, query, (latent, rope), Scores(1e-2))
        assert float((out.float() - expected).norm() / expected.norm()) < LATENT_TOLERANCE[dtype]
        starts = starts + counts
    parts = [layer.parts[0] for layer in (reference, kernels)]
    stored = [decode(part, part.tensor.view(torch.uint8), torch.float32) for part in parts]
    torch.testing.assert_close(*stored, rtol=2**-4, atol=0, equal_nan=True)
