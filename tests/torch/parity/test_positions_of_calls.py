"""What transformers derives from a whole call (its greatest position, how many tokens it has) never depends on which
requests a step packs together: rotary frequencies follow from the plan's longest length, scales from each position."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from quire import LLM, Sampling
from quire.plan.settings import Budget, Settings
from quire.worker.support.tiny import tiny_config
from tiny_folder import save_folder

torch.set_num_threads(1)
ORIGINAL = 24
"""Tokens that the models were first trained with."""
LONGEST, OUTPUTS = 96, 12
LENGTHS = (5, 17, ORIGINAL - 4, 61)
"""The third request crosses the original length while it is answered; the last one begins beyond it."""
FACTORS = {"short_factor": [1.0 + 0.1 * i for i in range(8)], "long_factor": [3.0 + i for i in range(8)]}
LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": ORIGINAL, **FACTORS}
PHI3: dict[str, Any] = {"original_max_position_embeddings": ORIGINAL, "rope_parameters": LONGROPE}
PHIMOE: dict[str, Any] = {"rope_parameters": {**LONGROPE, "short_mscale": 1.0, "long_mscale": 1.4}}
NESTED = {"full_attention": LONGROPE, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}
LONGROPES: dict[str, dict[str, Any]] = {
    "phi3": PHI3, "phimoe": PHIMOE, "llama": {"rope_parameters": LONGROPE}, "gemma3_text": {"rope_parameters": NESTED},
}  # fmt: skip
DYNAMIC: dict[str, Any] = {
    "max_position_embeddings": ORIGINAL,
    "rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0},
}
CLAMPED: dict[str, Any] = {"time_step_limit": (0.01, 0.3), "chunk_size": 16}
LLAMA4: dict[str, Any] = {"attn_temperature_tuning": True, "floor_scale": 8, "attn_scale": 1.0}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @cache
    def folder(name: str, options: str) -> Path:
        config = tiny_config(name)
        given = {"longrope": LONGROPES.get(name), "dynamic": DYNAMIC, "scaled": LLAMA4, "clamped": CLAMPED}[options]
        changed = type(config)(**{**config.to_dict(), **(given or {})})
        return save_folder(tmp_path_factory.mktemp(name), changed)

    return folder


def prompts() -> list[np.ndarray]:
    random = np.random.default_rng(3)
    return [random.integers(5, 290, length) for length in LENGTHS]


def started(folder: Path, max_length: int = LONGEST) -> LLM:
    """Prompts are cut into chunks of 16 tokens."""
    settings = Settings(max_length=max_length, max_requests=4, batch_tokens=16, match_unit_tokens=16)
    return LLM(folder, settings=settings, budget=Budget(pool_bytes=4 << 20), device="cpu")


def answers(llm: LLM, asked: list[np.ndarray], outputs: int = OUTPUTS) -> list[list[int]]:
    given = [prompt.tolist() for prompt in asked]
    return [list(one.token_ids) for one in llm.generate(given, Sampling(ignore_eos=True), max_tokens=outputs)]


@torch.inference_mode()
def greedy(folder: Path, prompt: np.ndarray, tokens: list[int], call_tokens: int) -> list[int]:
    """What transformers would choose after each token, in one call with this many: those that come later are padding,
    which earlier ones do not see. So it is transformers that picks the frequencies of a call of this length."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    sequence = [*prompt.tolist(), *tokens[:-1]]
    call = torch.tensor([*sequence, *[0] * (call_tokens - len(sequence))])
    logits = model(input_ids=call[None], use_cache=False).logits[0]
    chosen: list[int] = logits[len(prompt) - 1 : len(sequence)].argmax(dim=1).tolist()
    return chosen


@pytest.mark.story
@pytest.mark.parametrize("name", LONGROPES)
def test_a_long_request_does_not_change_the_keys_of_short_ones(name: str, folders: Any) -> None:
    """One request beyond the original length used to turn the keys of all others by the long factors, and those keys
    were found again by later requests. All have the frequencies of a call of the plan's longest length, in company and
    alone."""
    folder = folders(name, "longrope")
    together = answers(started(folder), prompts())
    alone = [answers(started(folder), [prompt])[0] for prompt in prompts()]
    assert together == alone
    assert alone == [greedy(folder, prompt, tokens, LONGEST) for prompt, tokens in zip(prompts(), alone, strict=True)]


@pytest.mark.parametrize("name", LONGROPES)
def test_a_plan_within_the_original_length_yields_what_transformers_generates(name: str, folders: Any) -> None:
    """Short factors for all, in each call of transformers too."""
    folder, asked = folders(name, "longrope"), [prompts()[0], prompts()[1]]
    found = answers(started(folder, ORIGINAL), asked, outputs=7)
    assert found == [greedy(folder, prompt, one, len(prompt) + 6) for prompt, one in zip(asked, found, strict=True)]


def test_dynamic_frequencies_are_those_of_the_longest_length(folders: Any) -> None:
    """Stretched up to `factor` times the model's own length, if that is asked for; else they are the original ones."""
    folder = folders("llama", "dynamic")
    found = answers(started(folder), prompts())
    assert found == [greedy(folder, prompt, one, LONGEST) for prompt, one in zip(prompts(), found, strict=True)]
    asked = prompts()[:2]
    short = answers(started(folder, ORIGINAL), asked, outputs=7)
    assert short == [greedy(folder, prompt, one, len(prompt) + 6) for prompt, one in zip(asked, short, strict=True)]


@pytest.mark.story
def test_scales_of_long_sequences_follow_each_tokens_own_position(folders: Any) -> None:
    """Llama 4's layers without rotary positions counted the tokens of the call: a token that came alone, or after
    those of other requests, was scaled as if it were elsewhere in its sequence."""
    folder = folders("llama4_text", "scaled")
    together = answers(started(folder), prompts())
    expected = [
        greedy(folder, prompt, tokens, len(prompt) + OUTPUTS - 1)
        for prompt, tokens in zip(prompts(), together, strict=True)
    ]
    assert together == expected


@pytest.mark.story
def test_time_steps_are_clamped_for_single_tokens_too(folders: Any) -> None:
    """Mamba-2 mixers clamped the time steps of several tokens at once and not that of a single one, so tokens depended
    on how a sequence was cut. Nemotron-H has such a limit."""
    folder = folders("mamba2", "clamped")
    found = answers(started(folder), prompts())
    expected = [
        greedy(folder, prompt, tokens, len(prompt) + OUTPUTS - 1)
        for prompt, tokens in zip(prompts(), found, strict=True)
    ]
    assert found == expected
