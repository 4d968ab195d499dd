"""The backend `flashinfer` with the library itself, beside Triton's kernels and the reference, from memory that is NaN
wherever nothing was written: last pages are half empty, and pages lie in random order."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from quire.core.dtypes import DType
from quire.core.step import Step, TableView
from quire.models.read import read_config
from quire.plan.make import make_plan
from quire.plan.plan import StagePlan
from quire.plan.settings import Budget, Settings
from quire.worker.arena import Arena
from quire.worker.attention import Scores
from quire.worker.backends import REFERENCE, Backend
from quire.worker.batch import make_batch
from quire.worker.tiny import tiny_config

if not torch.cuda.is_available():
    pytest.skip("no GPU here", allow_module_level=True)
pytest.importorskip("flashinfer", reason="FlashInfer is not installed")

from quire.worker.kernels.backend import Triton
from quire.worker.kernels.flash import FlashInfer

DEVICE = torch.device("cuda")
ROWS, WIDTH, PAGE, COLUMNS, QUERIES, KEYS = 4, 128, 16, 20, 8, 2
STEPS = ((20, 7, 1, 170), (1, 130, 1, 2), (5, 9, 3, 2), (1, 1, 1, 1), (64, 1, 40, 17), (3, 3, 100, 3))
"""Tokens of each row: prompts and others mixed, prompts alone, decoding, prompts again."""


def stage_of(name: str) -> StagePlan:
    heads = {"head_dim": WIDTH, "num_attention_heads": QUERIES, "num_key_value_heads": KEYS}
    fields = json.loads(tiny_config(name).to_json_string()) | heads
    settings = Settings(max_length=320, max_requests=ROWS, batch_tokens=320, page_tokens={"": PAGE})
    assert settings.kv_dtype is DType.BF16
    return make_plan(read_config(fields, name), settings, Budget(pool_bytes=16 << 20)).require_fit().stages[0]


class Memory:
    """The last layer of a kind on one backend; every row has pages of its own."""

    def __init__(self, stage: StagePlan, backend: Backend) -> None:
        self.stage, self.backend = stage, backend
        self.arena = Arena(stage, DEVICE)
        self.arena.bytes.view(torch.bfloat16).fill_(torch.nan)

    def attend(self, kind: int, starts: np.ndarray, counts: np.ndarray, drawn: torch.Tensor) -> torch.Tensor:
        plan, ones = self.stage.kinds[kind], np.ones(ROWS, dtype=np.int64)
        pages = np.random.default_rng(1).permutation(ROWS * plan.groups * COLUMNS)
        table = TableView(self.stage.addresses(kind, pages).reshape(ROWS, plan.groups, COLUMNS), 0)
        tables = tuple(table for _ in self.stage.kinds)
        ids = np.zeros(counts.sum(), dtype=np.int32)
        step = Step(0, np.array([2, 0, 3, 1]), starts, counts, ones > 0, ones, ids)
        batch = make_batch(step, self.stage, tables, DEVICE, [self.backend.prepare] * len(tables))
        parts = self.arena.layers[plan.manifest[-1].layer]
        query, key, value = (part.contiguous() for part in drawn.split([QUERIES, KEYS, KEYS], dim=1))
        pair = parts["key"], parts["value"]
        return self.backend.attend(batch.kinds[kind], pair, query, (key, value), Scores(WIDTH**-0.5))


@pytest.mark.parametrize(("name", "kind"), [("llama", "full"), ("gemma2", "window")])
def test_mixed_steps_yield_what_triton_and_the_reference_yield(name: str, kind: str) -> None:
    torch.manual_seed(0)
    stage = stage_of(name)
    number = next(place for place, plan in enumerate(stage.kinds) if plan.kind.kind == kind)
    flash = FlashInfer()
    assert flash.accepts.refusal(stage.kinds[number], "cuda", stage.sheet_bytes) == ""
    memories = [Memory(stage, backend) for backend in (flash, Triton(), REFERENCE)]
    starts = np.zeros(ROWS, dtype=np.int64)
    for counts in map(np.array, STEPS):
        drawn = torch.randn(int(counts.sum()), QUERIES + 2 * KEYS, WIDTH).to(DEVICE, torch.bfloat16)
        found, triton, reference = (memory.attend(number, starts, counts, drawn) for memory in memories)
        torch.testing.assert_close(found, triton, rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(found, reference, rtol=2e-2, atol=2e-2)
        starts = starts + counts
    assert [len(wrappers) for wrappers in flash._wrappers.values()] == [2]
