"""Weights lie differently; what they compute, and what anyone sees of them, stays."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from quire.models import weight_layout
from quire.worker.model.linears import GatedInPlace, PanelledShare, lay_out
from quire.worker.model.model import build
from quire.worker.support.tiny import tiny_config

torch.set_num_threads(1)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("outputs", "panels"), [(100, 0), (385, 0), (512, 2), (1536, 4)])
def test_a_weight_keeps_its_products(outputs: int, panels: int, has_bias: bool) -> None:
    """In panels where there are equal ones, in rows where there are not; for few tokens, for many, for none."""
    linear = nn.Linear(64, outputs, bias=has_bias)
    before = copy.deepcopy(linear)
    assert lay_out(linear) == 1
    assert len(getattr(linear, "panels", ())) == panels
    for tokens in (0, 1, 16, 300):
        x = torch.randn(1, tokens, 64)
        torch.testing.assert_close(linear(x), before(x))
        torch.testing.assert_close(linear(x[0]), before(x[0]))


def test_whoever_looks_at_a_weight_finds_it_and_it_is_kept_once() -> None:
    """Two layers share it: what one of them is asked for is no business of the other's."""
    first, second, before = nn.Linear(64, 512), nn.Linear(64, 512), nn.Linear(64, 512)
    first.weight = second.weight = nn.Parameter(before.weight.detach().clone())
    assert lay_out(nn.ModuleList([first, second])) == 1
    assert first.get_buffer("panels").data_ptr() == second.get_buffer("panels").data_ptr()
    x = torch.randn(3, 64)
    expected = [linear(x) for linear in (first, second)]
    assert torch.equal(first.weight, before.weight)
    assert first.weight.stride() == (1, 512)
    assert not list(first.buffers())
    for linear, found in zip((first, second), expected, strict=True):
        torch.testing.assert_close(linear(x), found)


def test_what_an_embedding_reads_and_other_precisions_stay() -> None:
    """A tied head would make looking up a token's row slow."""
    embedding, head = nn.Embedding(50, 8), nn.Linear(8, 50, bias=False)
    head.weight = embedding.weight
    assert lay_out(nn.ModuleList([embedding, head, nn.Linear(8, 8).to(torch.bfloat16)])) == 0
    assert head.weight.is_contiguous()


@pytest.mark.parametrize("outputs", [50, 512, 701])
def test_a_tied_head_puts_out_the_same_from_panels(outputs: int) -> None:
    """Whether or not panels divide the vocabulary, for few tokens, for many, and where nobody samples."""
    embedding, head = nn.Embedding(outputs, 8), nn.Linear(8, outputs)
    head.weight = embedding.weight
    lay_out(nn.ModuleList([embedding, head]))
    for tokens in (0, 1, 16, 129):
        x = torch.randn(1, tokens, 8)
        torch.testing.assert_close(head(x), nn.functional.linear(x, embedding.weight, head.bias))


@torch.inference_mode()
def test_what_reads_the_same_tokens_is_one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries, keys and values; the halves of a gated MLP, joined where they lie. Each still shows its weight."""
    monkeypatch.setattr(weight_layout, "PANEL_OUTPUTS", 24)
    layer = build(tiny_config("llama"), torch.float32).model.layers[0]
    before, tokens = copy.deepcopy(layer), torch.randn(1, 5, layer.hidden_size)
    lay_out(layer)
    given = tokens.clone()
    assert isinstance(layer.mlp, GatedInPlace)
    for _ in range(2):
        torch.testing.assert_close(layer.mlp(tokens), before.mlp(tokens))
        assert torch.equal(tokens, given)
    for name in ("q_proj", "k_proj", "v_proj"):
        part, apart = (getattr(one.self_attn, name) for one in (layer, before))
        assert isinstance(part.share, PanelledShare)
        torch.testing.assert_close(part(tokens), apart(tokens))
    assert torch.equal(layer.self_attn.k_proj.weight, before.self_attn.k_proj.weight)
    torch.testing.assert_close(layer.self_attn.k_proj(tokens), before.self_attn.k_proj(tokens))


@pytest.mark.parametrize("panel_outputs", [24, 384])
@pytest.mark.parametrize("name", ["llama", "deepseek_v3", "qwen3_moe", "bamba", "mamba"])
def test_a_model_computes_what_it_did(name: str, panel_outputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever reads weights on its own (latents, experts, convolutions, steps of a state) does too."""
    monkeypatch.setattr(weight_layout, "PANEL_OUTPUTS", panel_outputs)
    model = build(tiny_config(name), torch.float32).eval()
    model.set_attn_implementation("eager")
    tokens = torch.arange(3, 43)[None]
    with torch.inference_mode():
        before = model(input_ids=tokens, use_cache=False).logits
        assert lay_out(model) > 0
        after = model(input_ids=tokens, use_cache=False).logits
    assert (after - before).abs().max() < 1e-4
