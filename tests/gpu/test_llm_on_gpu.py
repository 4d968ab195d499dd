"""A checkpoint on a GPU: the same text as on a CPU, and every byte of the device accounted for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from quire.cli.main import main
from quire.core.errors import DoesNotFit
from quire.core.events import TokensDrafted
from quire.core.sampling import Sampling
from quire.plan.settings import Budget, Settings

if not torch.cuda.is_available():
    pytest.skip("no GPU here", allow_module_level=True)

from quire.llm import LLM
from tiny_folder import make_folder

PROMPTS = ["the quick brown fox", "the lazy dog sees", "a"]
SETTINGS = Settings(max_length=256, max_requests=8, batch_tokens=64)
POOL = Budget(pool_bytes=32 << 20)


def llm_on(device: str, folder: Path) -> LLM:
    return LLM(folder, settings=SETTINGS, budget=POOL, dtype="fp32", device=device)


def test_text_is_the_same_on_a_gpu_and_on_a_cpu(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    on_gpu, on_cpu = (llm_on(device, folder).generate(PROMPTS, max_tokens=20) for device in ("cuda", "cpu"))
    assert [one.text for one in on_gpu] == [one.text for one in on_cpu]


def test_log_probabilities_are_near_those_of_a_cpu(tmp_path: Path) -> None:
    folder, sampling = make_folder(tmp_path), Sampling(logprobs=2, prompt_logprobs=1)
    on_gpu, on_cpu = (llm_on(device, folder).generate(PROMPTS, sampling, max_tokens=8) for device in ("cuda", "cpu"))
    for mine, expected in zip(on_gpu, on_cpu, strict=True):
        assert mine.logprobs is not None
        assert mine.prompt_logprobs is not None
        assert mine.token_ids == expected.token_ids
        for one, other in zip(mine.logprobs, expected.logprobs or (), strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
        for one, other in zip(mine.prompt_logprobs, expected.prompt_logprobs or (), strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)


def test_the_ledger_is_measured_and_the_pool_is_what_the_plan_says(tmp_path: Path) -> None:
    llm = llm_on("auto", make_folder(tmp_path))
    stage = llm.plan.stages[0]
    lines = {line.name: line for line in llm.parts.report.measured}
    assert lines["pool"].measured_bytes == stage.pool_bytes + stage.sheet_bytes
    assert {"weights", "activations", "graphs", "workspace", "tables", "staging"} <= lines.keys()
    assert lines["weights"].measured_bytes > 0
    assert lines["activations"].measured_bytes > 0


def test_decode_steps_are_recorded_and_told(tmp_path: Path) -> None:
    llm = LLM(make_folder(tmp_path), settings=SETTINGS, budget=POOL, device="cuda")
    assert llm.plan.kv_dtype == "bf16"
    assert llm.parts.report.lines()[0] == "decode steps are recorded for 2, 4, 8 rows"
    assert len(llm.generate(PROMPTS, Sampling(ignore_eos=True), max_tokens=20)) == len(PROMPTS)
    assert llm.engine.runner.graphs.played > 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("draft_tokens", [1, 4])
def test_a_draft_model_changes_no_token(tmp_path: Path, draft_tokens: int) -> None:
    """It equals the model, so all its guesses come true."""
    folder = make_folder(tmp_path)
    both = LLM(folder, settings=SETTINGS, budget=POOL, dtype="fp32", draft_model=folder, draft_tokens=draft_tokens)
    answers = both.generate(PROMPTS, max_tokens=20)
    assert [one.text for one in answers] == [one.text for one in llm_on("cpu", folder).generate(PROMPTS, max_tokens=20)]
    sums = both.engine.counters.sums
    assert sums[TokensDrafted, "accepted"] > 0.9 * sums[TokensDrafted, "drafted"] > 0


def test_the_command_answers_and_tells_how_it_ran(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = make_folder(tmp_path)
    ask = ["generate", str(folder), "--prompt", "the fox", "--raw", "--max-tokens", "8", "--device", "cuda"]
    assert main([*ask, "--pool", "32MiB", "--compile", "--stats"]) == 0
    text, said = capfd.readouterr()
    assert text.strip()
    assert "decode steps are recorded for 2, 4, 8, 16 rows\n" in said
    assert "\nmemory: weights " in said


def test_a_pool_beyond_what_is_free_is_refused_with_the_numbers(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    held = torch.empty(torch.cuda.mem_get_info()[0] - (1 << 30), dtype=torch.uint8, device="cuda")
    with pytest.raises(DoesNotFit, match="lower the pool"):
        LLM(folder, settings=SETTINGS, budget=Budget(pool_bytes=2 << 30), dtype="fp32", device="cuda")
    del held
