"""What experts take is what the plan's ledger has for them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

from quire.models.read import read_config
from quire.plan import ledger

TOKENS = 512


def config(chosen: int, inner: int) -> Qwen3MoeConfig:
    made = Qwen3MoeConfig(
        hidden_size=256,
        moe_intermediate_size=inner,
        num_experts=16,
        num_experts_per_tok=chosen,
        num_hidden_layers=1,
        vocab_size=64,
    )
    made._experts_implementation = "grouped_mm"
    return made


@torch.no_grad()
def peak_bytes(chosen: int, inner: int) -> float:
    """Of the step's tokens and all that comes of them; in 32 bits, so half of it would be there in 16."""
    block = Qwen3MoeSparseMoeBlock(config(chosen, inner))
    for part in block.parameters():
        torch.nn.init.normal_(part, std=0.02)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        block(torch.randn(1, TOKENS, 256))
    assert seen.profiler is not None
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return float(np.cumsum([event.nbytes() for event in events]).max()) / 2


@pytest.mark.parametrize("inner", [64, 512, 896])
@pytest.mark.parametrize("chosen", [4, 8])
def test_the_ledger_has_what_experts_of_a_step_take(chosen: int, inner: int) -> None:
    """Narrow ones and wide ones; and no more than a third beside it, for what else a layer holds."""
    shape = read_config({**config(chosen, inner).to_dict(), "dtype": "bfloat16"}, "few-experts")
    counted = ledger.activation_line(shape, TOKENS, 1, 0, 1, True).bytes
    assert counted / 1.35 < peak_bytes(chosen, inner) <= counted
