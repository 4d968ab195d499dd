"""Checkpoints with experts on a GPU, in floats and packed: kernels compute them, and the text is a CPU's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from quire.core.sampling import Sampling
from quire.fetch.find import converted
from quire.plan.settings import Budget, Settings

if not torch.cuda.is_available():
    pytest.skip("no GPU here", allow_module_level=True)

from quire.llm import LLM
from quire.worker.model import packed_cpu
from quire.worker.model.experts import KernelExperts, KernelRouter
from quire.worker.support.tiny import tiny_config
from tiny_folder import save_folder

PROMPTS = ["the quick brown fox", "the lazy dog sees", "a"]
SETTINGS = Settings(max_length=256, max_requests=8, batch_tokens=64)
POOL = Budget(pool_bytes=32 << 20)
OUTPUTS = 12


def llm_on(device: str, folder: Path) -> LLM:
    return LLM(folder, settings=SETTINGS, budget=POOL, dtype="fp32", device=device)


@pytest.mark.parametrize("weights", [None, "fp8", "int4"])
@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss"])
def test_experts_on_kernels_yield_what_a_cpu_yields(
    name: str, weights: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIRE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(packed_cpu, "fits", lambda _packed: False)  # a CPU's own products round tokens
    folder = save_folder(tmp_path, tiny_config(name))
    folder = folder if weights is None else converted(folder, weights=weights)
    on_gpu, on_cpu = (llm_on(device, folder) for device in ("cuda", "cpu"))
    modules = list(on_gpu.engine.runner.model.model.modules())  # type: ignore[attr-defined]
    for sort in (KernelExperts, KernelRouter):
        assert any(isinstance(module, sort) for module in modules)
    found, expected = (one.generate(PROMPTS, Sampling(ignore_eos=True), max_tokens=OUTPUTS) for one in (on_gpu, on_cpu))
    assert [one.token_ids for one in found] == [one.token_ids for one in expected]
