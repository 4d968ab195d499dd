"""The backend `flashinfer` with the library itself, beside Triton's kernels and the reference: alone, from memory that
is NaN wherever nothing was written (last pages are half empty, and pages lie in random order), and in an engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from layer_memory import ROWS, LayerMemory
from quire.core.dtypes import DType
from quire.core.sampling import Sampling
from quire.models.read import read_config
from quire.plan.make import make_plan
from quire.plan.plan import StagePlan
from quire.plan.settings import Budget, Settings
from quire.worker.backends.choice import REFERENCE
from quire.worker.support.tiny import tiny_config

if not torch.cuda.is_available():
    pytest.skip("no GPU here", allow_module_level=True)
pytest.importorskip("flashinfer", reason="FlashInfer is not installed")

from quire.llm import LLM
from quire.worker.backends.flashinfer_backend import AT_ONCE, FlashInfer, available
from quire.worker.backends.triton_backend import Triton
from quire.worker.steps import boot
from tiny_folder import make_folder

DEVICE = torch.device("cuda")
WIDTH, PAGE, COLUMNS, QUERIES, KEYS = 128, 16, 20, 8, 2
STEPS = ((20, 7, 1, 170), (1, 130, 1, 2), (5, 9, 3, 2), (1, 1, 1, 1), (64, 1, 40, 17), (3, 3, 100, 3))
"""Tokens of each row: prompts and others mixed, prompts alone, decoding, prompts again."""
PROMPTS = tuple(
    np.random.default_rng(length).integers(5, 200, length).tolist() for length in (1, 2, 40, 7, 150, 64, 230, 99)
)
OUTPUTS = 20
SHAPED = Sampling(logit_bias=((0, 0.0),), ignore_eos=True)
"""Nothing changes, and the sampler is asked for every token."""
Seen = dict[int, list[tuple[int, torch.Tensor]]]
"""By row: each token that was drawn, and the logits before it."""


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


def drawn_by(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> Seen:
    """All prompts together. What is noted stays on the device until the end: nobody waits for a step in between."""
    sampler: Any = llm.engine.runner.sampler  # type: ignore[attr-defined]
    noted, sample = list[tuple[np.ndarray, torch.Tensor, torch.Tensor]](), sampler.sample

    def noting(logits: torch.Tensor, rows: np.ndarray, positions: np.ndarray) -> torch.Tensor:
        tokens: torch.Tensor = sample(logits, rows, positions)
        noted.append((np.array(rows), tokens.clone(), logits.clone()))
        return tokens

    monkeypatch.setattr(sampler, "sample", noting)
    llm.generate(PROMPTS, SHAPED, max_tokens=OUTPUTS)
    seen: Seen = {}
    for rows, tokens, logits in noted:
        for row, token, before in zip(rows.tolist(), tokens.tolist(), logits.float().cpu(), strict=True):
            seen.setdefault(row, []).append((token, before))
    return seen


def test_an_engine_yields_what_it_yields_on_triton(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts come in pieces, beside rows that decode, and steps overlap. Logits are near as long as tokens agree: in
    bf16, two that are as likely may change places. A prompt that read other pages would be far off."""
    folder, seen = make_folder(tmp_path, WIDTH), list[Seen]()
    settings = Settings(max_length=256, max_requests=len(PROMPTS), batch_tokens=64)
    for backends in (available(), (Triton(), REFERENCE)):
        monkeypatch.setattr(boot, "available", lambda _is_invariant, chosen=backends: chosen)
        llm = LLM(folder, settings=settings, budget=Budget(pool_bytes=64 << 20), device="cuda")
        assert llm.parts.report.kernels[0].startswith(f"full on {backends[0].name}")
        seen.append(drawn_by(llm, monkeypatch))
        if isinstance(backends[0], FlashInfer):
            assert {len(wrappers) for wrappers in backends[0]._wrappers.values()} == {AT_ONCE}
    errors = []
    for row, drawn in seen[0].items():
        assert len(drawn) == len(seen[1][row]) == OUTPUTS
        for (token, found), (expected_token, expected) in zip(drawn, seen[1][row], strict=True):
            errors.append(float((found - expected).norm() / expected.norm()))
            if token != expected_token:
                break
    assert len(seen[0]) == len(PROMPTS)
    assert len(errors) > 4 * len(PROMPTS)
    assert np.median(errors) < 0.05
    assert max(errors) < 0.3
