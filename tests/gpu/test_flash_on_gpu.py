"""The backend `flashinfer` with the library itself, beside Triton's kernels and the reference, from memory that is NaN
wherever nothing was written: last pages are half empty, and pages lie in random order."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from layer_memory import ROWS, LayerMemory
from quire.core.dtypes import DType
from quire.models.read import read_config
from quire.plan.make import make_plan
from quire.plan.plan import StagePlan
from quire.plan.settings import Budget, Settings
from quire.worker.backends import REFERENCE
from quire.worker.tiny import tiny_config

if not torch.cuda.is_available():
    pytest.skip("no GPU here", allow_module_level=True)
pytest.importorskip("flashinfer", reason="FlashInfer is not installed")

from quire.worker.kernels.backend import Triton
from quire.worker.kernels.flash import FlashInfer

DEVICE = torch.device("cuda")
WIDTH, PAGE, COLUMNS, QUERIES, KEYS = 128, 16, 20, 8, 2
STEPS = ((20, 7, 1, 170), (1, 130, 1, 2), (5, 9, 3, 2), (1, 1, 1, 1), (64, 1, 40, 17), (3, 3, 100, 3))
"""Tokens of each row: prompts and others mixed, prompts alone, decoding, prompts again."""


def stage_of(name: str) -> StagePlan:
    heads = {"head_dim": WIDTH, "num_attention_heads": QUERIES, "num_key_value_heads": KEYS}
    fields = json.loads(tiny_config(name).to_json_string()) | heads
    settings = Settings(max_length=320, max_requests=ROWS, batch_tokens=320, page_tokens={"": PAGE})
    assert settings.kv_dtype is DType.BF16
    return make_plan(read_config(fields, name), settings, Budget(pool_bytes=16 << 20)).require_fit().stages[0]


@pytest.mark.parametrize(("name", "kind"), [("llama", "full"), ("gemma2", "window")])
def test_mixed_steps_yield_what_triton_and_the_reference_yield(name: str, kind: str) -> None:
    torch.manual_seed(0)
    stage = stage_of(name)
    number = next(place for place, plan in enumerate(stage.kinds) if plan.kind.kind == kind)
    flash = FlashInfer()
    assert flash.accepts.refusal(stage.kinds[number], "cuda", stage.sheet_bytes) == ""
    backends = flash, Triton(), REFERENCE
    memories = [LayerMemory(stage, backend, DEVICE, torch.bfloat16, COLUMNS) for backend in backends]
    starts = np.zeros(ROWS, dtype=np.int64)
    for counts in map(np.array, STEPS):
        drawn = torch.randn(int(counts.sum()), QUERIES + 2 * KEYS, WIDTH).to(DEVICE, torch.bfloat16)
        found, triton, reference = (memory.attend(number, starts, counts, drawn, KEYS) for memory in memories)
        torch.testing.assert_close(found, triton, rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(found, reference, rtol=2e-2, atol=2e-2)
        starts = starts + counts
    assert [len(wrappers) for wrappers in flash._wrappers.values()] == [2]
