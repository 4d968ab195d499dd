"""Lean layers stand for transformers' where they compute the same, and only there."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from quire.worker.model import lean
from tiny_models import Service, plan_of

torch.set_num_threads(1)
LEAN = ("llama", "mistral", "qwen2", "qwen3", "smollm3")
"""That their tokens and logits are transformers' is tested with all others (`test_tokens_equal_generate.py`)."""


@pytest.mark.parametrize("name", LEAN)
def test_these_models_run_lean(name: str) -> None:
    """Requests of many lengths, in chunks of 7 tokens, alone and together."""
    service = Service(name, plan_of(name, batch_tokens=7))
    assert service.runner.model.lean is not None
    service.check()


@pytest.mark.parametrize("name", ["gemma3_text", "granite", "phi3", "qwen3_moe", "olmo3"])
def test_other_models_do_not(name: str) -> None:
    assert Service(name, plan_of(name, batch_tokens=32)).runner.model.lean is None


def _wrong_rotation(_layer: Any, heads: torch.Tensor, rotation: lean.Rotation) -> torch.Tensor:
    return heads * rotation[0]


def test_a_model_that_computes_something_else_is_not_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is compared when it is loaded; then transformers' own layers run, and the log says so."""
    monkeypatch.setattr(lean.LeanLayer, "_rotated", _wrong_rotation)
    with caplog.at_level(logging.WARNING):
        service = Service("llama", plan_of("llama", batch_tokens=32))
    assert service.runner.model.lean is None
    assert "runs transformers' own layers" in caplog.text
    service.check()
