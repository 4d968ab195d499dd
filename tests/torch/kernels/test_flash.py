"""The backend `flashinfer` tells FlashInfer which pages each prompt reads; a double of it reads exactly those."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from layer_memory import ROWS, LayerMemory
from quire.core.dtypes import DType
from quire.models.read import read_config
from quire.plan.make import make_plan
from quire.plan.plan import StagePlan
from quire.plan.settings import Budget, Settings
from quire.worker.backends import flashinfer_backend
from quire.worker.backends.choice import REFERENCE, choose
from quire.worker.backends.flashinfer_backend import FlashInfer, workspace_bytes
from quire.worker.backends.triton_backend import INTERPRETER_PROCESSORS, Triton
from quire.worker.kernels.tiles import HeadShape
from quire.worker.support.tiny import tiny_config

if torch.cuda.is_available():
    pytest.skip("a double of FlashInfer in plain torch, and kernels under the interpreter", allow_module_level=True)

WIDTH, PAGE, COLUMNS = 64, 16, 5
STEPS = ((20, 7, 1, 70), (1, 30, 1, 2), (5, 9, 3, 2), (1, 1, 1, 1))
"""Tokens of each row: prompts and others mixed, prompts alone, decoding."""


class Wrapper:
    """What `BatchPrefillWithPagedKVCacheWrapper` promises, in plain torch."""

    def __init__(self, workspace: torch.Tensor, layout: str, backend: str) -> None:
        assert layout == "NHD"
        self.workspace, self.backend, self.runs = workspace, backend, 0

    def plan(
        self, begins: torch.Tensor, page_begins: torch.Tensor, indices: torch.Tensor, last: torch.Tensor,
        heads: int, key_heads: int, width: int, page: int, *, window_left: int, sm_scale: float,
        q_data_type: torch.dtype, kv_data_type: torch.dtype, causal: bool,
    ) -> None:  # fmt: skip
        assert causal
        assert q_data_type == kv_data_type, "the library has no kernel for queries of another dtype than its pages"
        pieces = 2 * INTERPRETER_PROCESSORS // key_heads
        assert 4 * heads * pieces * 128 * (width + 1) <= self.workspace.numel(), "Buffer overflow: batch_prefill_tmp_v"
        lengths = (page_begins[1:] - page_begins[:-1] - 1) * page + last
        self.rows = list(
            zip(begins.tolist(), begins[1:].tolist(), page_begins.tolist(), lengths.tolist(), strict=False)
        )
        self.indices, self.scale = indices.long(), sm_scale
        self.window_left, self.page, self.key_heads = window_left, page, key_heads

    def run(
        self, query: torch.Tensor, pages: tuple[torch.Tensor, torch.Tensor], out: torch.Tensor | None = None
    ) -> torch.Tensor:
        self.runs += 1
        out = torch.full_like(query, torch.nan) if out is None else out
        for begin, end, first, length in self.rows:
            places = self.indices[first : first + -(-length // self.page)]
            key, value = (part[places].flatten(0, 1)[:length].double() for part in pages)
            share = query.shape[1] // self.key_heads
            key, value = key.repeat_interleave(share, 1), value.repeat_interleave(share, 1)
            raw = torch.einsum("qhd,khd->hqk", query[begin:end].double(), key) * self.scale
            ahead = torch.arange(length) - torch.arange(length - (end - begin), length)[:, None]
            seen = (ahead <= 0) & (ahead >= -self.window_left if self.window_left >= 0 else True)
            weights = raw.masked_fill(~seen, -torch.inf).softmax(-1)
            out[begin:end] = torch.einsum("hqk,khd->qhd", weights, value).to(out.dtype)
        return out


def stage_of(name: str, **changes: object) -> StagePlan:
    fields = json.loads(tiny_config(name).to_json_string()) | {"head_dim": WIDTH} | changes
    settings = Settings(
        max_length=128, max_requests=ROWS, batch_tokens=128, kv_dtype=DType.FP16, page_tokens={"": PAGE}
    )
    return make_plan(read_config(fields, name), settings, Budget(pool_bytes=4 << 20)).require_fit().stages[0]


def noting(made: list[Wrapper]) -> Any:
    return SimpleNamespace(
        BatchPrefillWithPagedKVCacheWrapper=lambda *given, **more: made.append(Wrapper(*given, **more)) or made[-1]
    )


@pytest.mark.parametrize(("name", "kind"), [("llama", "full"), ("gemma2", "window")])
def test_prompts_read_the_pages_that_the_tables_name(name: str, kind: str) -> None:
    torch.manual_seed(0)
    made: list[Wrapper] = []
    stage = stage_of(name)
    number = next(place for place, plan in enumerate(stage.kinds) if plan.kind.kind == kind)
    backends = FlashInfer(noting(made)), REFERENCE
    memories = [LayerMemory(stage, backend, torch.device("cpu"), torch.float16, COLUMNS) for backend in backends]
    starts = np.zeros(ROWS, dtype=np.int64)
    for counts in map(np.array, STEPS):
        drawn = torch.randn(int(counts.sum()), 8, WIDTH).half()
        found, expected = (memory.attend(number, starts, counts, drawn, keys=2) for memory in memories)
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=1e-2)
        starts = starts + counts
    assert sum(wrapper.runs for wrapper in made) == len(STEPS) - 1
    assert len(made) == 2


@pytest.mark.story
def test_queries_in_another_dtype_than_the_pages_go_to_triton() -> None:
    torch.manual_seed(0)
    made: list[Wrapper] = []
    stage, starts, counts = stage_of("llama"), np.zeros(ROWS, dtype=np.int64), np.array(STEPS[0])
    drawn = torch.randn(int(counts.sum()), 8, WIDTH)
    found, expected = (
        LayerMemory(stage, backend, torch.device("cpu"), torch.float16, COLUMNS).attend(
            0, starts, counts, drawn, keys=2
        )
        for backend in (FlashInfer(noting(made)), REFERENCE)
    )
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=1e-2)
    assert not made


@pytest.mark.story
def test_the_workspace_has_room_for_all_heads_that_share_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models may differ: a draft model runs on the same backend."""
    made: list[Wrapper] = []
    monkeypatch.setattr(flashinfer_backend, "WORKSPACE_BYTES", 1 << 20)
    stage, starts, counts = stage_of("llama"), np.zeros(ROWS, dtype=np.int64), np.array(STEPS[0])
    memory = LayerMemory(stage, FlashInfer(noting(made)), torch.device("cpu"), torch.float16, COLUMNS)
    for heads in (4, 8, 64, 4):
        memory.attend(0, starts, counts, torch.randn(int(counts.sum()), heads + 4, WIDTH).half(), keys=2)
    assert [wrapper.runs for wrapper in made] == [1, 1, 1, 1]
    assert [wrapper.workspace.numel() >> 20 for wrapper in made] == [1, 1, 8, 8]


def test_a_workspace_on_a_large_device() -> None:
    """Of 132 processors: 32 heads over 2 keys overflowed 256 MiB."""
    assert workspace_bytes(HeadShape(32, 8, 128, 128, 2), processors=132) == 256 << 20
    assert workspace_bytes(HeadShape(32, 2, 128, 128, 2), processors=132) == 4 * 32 * 132 * 128 * 129
    assert workspace_bytes(HeadShape(32, 2, 256, 256, 2), processors=132) == 4 * 32 * 132 * 64 * 257


def test_it_takes_what_it_can_run_and_says_why_not() -> None:
    both = (FlashInfer(SimpleNamespace()), Triton())
    kinds = {"llama": "flashinfer", "gpt2": "triton", "deepseek_v3": "triton"}
    for name, expected in kinds.items():
        stage = stage_of(name) if name != "gpt2" else stage_of("llama", head_dim=16)
        assert {choice.backend.name for choice in choose(stage, "cpu", both)} == {expected}
    plan = stage_of("llama").kinds[0]
    assert both[0].accepts.refusal(plan, "cpu", plan.page_bytes * 3) == ""
    assert "a sheet is 256 B more than whole pages" in both[0].accepts.refusal(plan, "cpu", plan.page_bytes * 3 + 256)
    (latent,) = choose(stage_of("deepseek_v3"), "cpu", both)
    assert latent.describe() == "latent on triton (flashinfer does not know latent)"
    (full,) = choose(stage_of("llama"), "cpu", both)
    left = "decoding, sink logits, soft caps, ALiBi and queries in another dtype than the pages"
    assert full.describe() == f"full on flashinfer ({left}: triton)"
    narrow = stage_of("llama", head_dim=16).kinds[0]
    assert "needs keys and values of 64 or 128 or 256 numbers, not 16" in both[0].accepts.refusal(narrow, "cpu")
