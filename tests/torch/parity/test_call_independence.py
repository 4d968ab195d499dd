"""A model whose results depend on the call is found at load, by a small twin with its own options and lengths."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING

from quire.core.errors import ModelError
from quire.worker.model.model import build
from quire.worker.support import calls
from quire.worker.support.calls import check_calls, far_positions, lengths_of
from quire.worker.support.check_model import check_model
from quire.worker.support.tiny import tiny_config, twin_config
from tiny_models import plan_of

torch.set_num_threads(1)
LONG = 32_768
FACTORS: dict[str, Any] = {"short_factor": [1.0] * 48, "long_factor": [1.0 + i / 2 for i in range(48)]}
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 4096, **FACTORS}
MSCALES = {"short_mscale": 1.0, "long_mscale": 1.2}
FULL_SIZE: dict[str, dict[str, Any]] = {
    "phi3": {"max_position_embeddings": 131_072, "rope_parameters": LONGROPE},
    "phimoe": {"rope_parameters": {**LONGROPE, "short_factor": [1.0] * 64, "long_factor": [2.0] * 64, **MSCALES}},
    "llama": {"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "dynamic", "factor": 8.0}},
    "llama4_text": {},
}
"""Each with the widths of a real model: 7 to 100 billion weights that are never made."""


def real(name: str) -> Any:
    """A model as far as the check looks at it."""
    return SimpleNamespace(config=CONFIG_MAPPING[name](**FULL_SIZE[name]))


@pytest.mark.story
@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("phi3", "the query of layer 0 at position 1: with 6 other tokens .* a whole sequence of 4,104 tokens"),
        ("phimoe", "the query of layer 0 at position 1: with 6 other tokens .* a whole sequence of 4,104 tokens"),
        ("llama", "the query of layer 0 at position 1: with 6 other tokens .* a whole sequence of 32,768 tokens"),
        ("llama4_text", "the query of layer 3 at position 8,191: with 6 other tokens .* sequence of 8,200 tokens"),
    ],
)
def test_what_follows_from_the_call_is_found_at_the_lengths_of_the_configuration(
    name: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of these shows below the lengths that it names. With positions fixed, nothing depends on the call."""
    check_calls(real(name), LONG)
    monkeypatch.setattr(calls, "fix_positions", lambda _model, _longest: None)
    with pytest.raises(ModelError, match=found):
        check_calls(real(name), LONG)


@pytest.mark.parametrize(
    "name",
    ["gemma3_text", "gpt_oss", "qwen3_next", "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "falcon_h1", "gpt2", "opt"],
)
def test_a_model_of_full_size_passes(name: str) -> None:
    """Windows, sinks, states, latents, learned positions: none depends on the call."""
    config = CONFIG_MAPPING[name]()
    longest = min(LONG, config.max_position_embeddings)
    check_calls(SimpleNamespace(config=config), longest)


def test_a_twin_has_the_options_and_lengths_of_its_model_and_is_small() -> None:
    config = CONFIG_MAPPING["phi3"](**FULL_SIZE["phi3"], sliding_window=2047, tie_word_embeddings=True)
    twin = twin_config(config)
    assert (twin.max_position_embeddings, twin.sliding_window, twin.tie_word_embeddings) == (131_072, 2047, True)
    assert twin.rope_parameters["original_max_position_embeddings"] == 4096
    assert twin.rope_parameters["long_factor"] == FACTORS["long_factor"][::6], "one for each pair of 16 numbers"
    assert sum(weights.numel() for weights in build(twin, torch.float32).parameters()) < 200_000


def test_lengths_are_those_that_the_configuration_names() -> None:
    """Below the longest one; positions lie on both sides of each."""
    config = real("llama4_text").config
    assert lengths_of(config, LONG) == [8192]
    assert lengths_of(config, 8192) == []
    assert far_positions(config, LONG) == [8191, 8192, 8193, 16_384, LONG - 1]


def test_a_configuration_that_no_twin_can_be_made_of_is_refused() -> None:
    """Rather than run unchecked."""
    config = tiny_config("llama")
    config.hidden_act = "no such function"
    with pytest.raises(ModelError, match=r"no small twin of its configuration can be made.*no such function"):
        check_calls(SimpleNamespace(config=config), 64)


def test_a_rotary_embedding_that_turns_far_tokens_by_the_call_is_found_in_the_model_itself() -> None:
    """As if it had been taken over by other code than the twin's."""
    model = build(tiny_config("llama"), torch.float32)
    rotary = model.model.rotary_emb
    forward = rotary.forward
    rotary.forward = lambda states, position_ids: forward(states, position_ids * (2 if position_ids.max() > 64 else 1))
    with pytest.raises(ModelError, match="depends on neighbours or on where a chunk begins"):
        check_model(model, plan_of("llama", batch_tokens=32).stages[0])
