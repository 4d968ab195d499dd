"""Weights lie differently; what they compute, and what anyone sees of them, stays."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from quire.worker.linears import lay_out
from quire.worker.model import build
from quire.worker.tiny import tiny_config

torch.set_num_threads(1)


@pytest.mark.parametrize("outputs", [100, 512, 1536])
def test_a_weight_keeps_its_shape_and_its_products(outputs: int) -> None:
    """Rows of outputs are dense in memory, apart from a cache line where they would crowd the cache."""
    linear = nn.Linear(64, outputs)
    before = copy.deepcopy(linear)
    assert lay_out(linear) == 1
    assert torch.equal(linear.weight, before.weight)
    assert linear.weight.stride() == (1, outputs if outputs == 100 else outputs + 16)
    for tokens in (1, 16, 300):
        x = torch.randn(tokens, 64)
        torch.testing.assert_close(linear(x), before(x))


def test_what_an_embedding_reads_and_other_precisions_stay() -> None:
    """A tied head would make looking up a token's row slow."""
    embedding, head = nn.Embedding(50, 8), nn.Linear(8, 50, bias=False)
    head.weight = embedding.weight
    assert lay_out(nn.ModuleList([embedding, head, nn.Linear(8, 8).to(torch.bfloat16)])) == 0
    assert head.weight.is_contiguous()


@pytest.mark.parametrize("outputs", [50, 512, 700])
def test_a_tied_head_puts_out_the_same_from_panels(outputs: int) -> None:
    """Whether or not panels divide the vocabulary, for few tokens, for many, and where nobody samples."""
    embedding, head = nn.Embedding(outputs, 8), nn.Linear(8, outputs)
    head.weight = embedding.weight
    lay_out(nn.ModuleList([embedding, head]))
    for tokens in (0, 1, 16, 65):
        x = torch.randn(1, tokens, 8)
        torch.testing.assert_close(head(x), nn.functional.linear(x, embedding.weight, head.bias))


@pytest.mark.parametrize("name", ["llama", "deepseek_v3", "qwen3_moe", "bamba"])
def test_a_model_computes_what_it_did(name: str) -> None:
    """Whatever reads weights on its own (latents, experts, convolutions) does too."""
    model = build(tiny_config(name), torch.float32).eval()
    model.set_attn_implementation("eager")
    tokens = torch.arange(3, 43)[None]
    with torch.inference_mode():
        before = model(input_ids=tokens, use_cache=False).logits
        assert lay_out(model) > 0
        after = model(input_ids=tokens, use_cache=False).logits
    assert (after - before).abs().max() < 1e-4
