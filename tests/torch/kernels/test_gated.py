"""The two halves of a gated MLP in one launch, or joined behind torch's product."""

from __future__ import annotations

import pytest
import torch
from paged_case import DEVICE
from torch import nn
from torch.nn import functional
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP

from quire.worker.kernels.gated import gated, joined, tile_of
from quire.worker.model.fused import fuse, gate
from quire.worker.model.packed_linear import PackedLinear
from quire.worker.model.quantise import to_int8


def expected(tokens: torch.Tensor, weight: torch.Tensor, is_gelu: bool = False) -> torch.Tensor:
    gates, ups = functional.linear(tokens, weight).chunk(2, -1)
    return (functional.gelu(gates, approximate="tanh") if is_gelu else functional.silu(gates)) * ups


ONE, TWO = torch.bfloat16, torch.float32
"""Launches: halves in fp32 are multiplied by torch, and joined after it. The interpreter cuts bf16 off three times."""


@pytest.mark.parametrize("is_gelu", [False, True])
@pytest.mark.parametrize(
    ("tokens", "inputs", "outputs", "dtype"),
    [
        (33, 128, 64, ONE),
        (64, 64, 64, ONE),
        (128, 64, 128, ONE),
        (256, 128, 128, ONE),
        (256, 64, 64, TWO),
        (40, 64, 64, TWO),
        (5, 128, 64, TWO),
        (9, 72, 40, TWO),
    ],
)
def test_results_are_those_of_torch(tokens: int, inputs: int, outputs: int, dtype: torch.dtype, is_gelu: bool) -> None:
    """Large numbers too: gelu is 0 far below zero, and a sigmoid there must not overflow."""
    torch.manual_seed(0)
    given = torch.randn(1, tokens, inputs).to(DEVICE, dtype)
    weight = torch.randn(2 * outputs, inputs).to(DEVICE, dtype)
    found, right = gated(given, weight, is_gelu).float(), expected(given.float(), weight.float(), is_gelu)
    assert float((found - right).norm() / right.norm()) < (2e-2 if dtype is ONE else 1e-5)


@pytest.mark.parametrize(
    ("tokens", "outputs", "inputs", "rows"),
    [(64, 64, 128, 64), (64, 64, 72, None), (64, 40, 128, None), (256, 64, 128, None), (256, 128, 128, 128)],
)
def test_weights_that_tiles_do_not_end_with_are_left_to_torch(
    tokens: int, outputs: int, inputs: int, rows: int | None
) -> None:
    assert rows_of_tile(tokens, torch.empty(2 * outputs, inputs, dtype=torch.bfloat16)) == rows
    assert rows_of_tile(tokens, torch.empty(2 * outputs, inputs)) is None
    assert rows_of_tile(tokens, torch.empty(inputs, 2 * outputs, dtype=torch.bfloat16).T) is None


@pytest.mark.parametrize(
    ("tokens", "rows"),
    [
        *[(32, None), (33, 64), (64, 64), (65, None), (96, None), (97, 128), (128, 128), (129, None)],
        *[(255, None), (256, 128), (257, None)],
    ],
)
def test_tiles_are_for_numbers_of_tokens_where_they_beat_torch(tokens: int, rows: int | None) -> None:
    assert rows_of_tile(tokens, torch.empty(256, 128, dtype=torch.bfloat16)) == rows


def test_a_tile_that_the_gpu_has_no_room_for_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """164 KiB hold the tiles of 128 tokens, and not those of 256."""
    monkeypatch.setattr("quire.worker.kernels.gated.shared_bytes_of", lambda _device: 164 << 10)
    weight = torch.empty(256, 128, dtype=torch.bfloat16)
    assert [rows_of_tile(tokens, weight) for tokens in (128, 256)] == [128, None]


def rows_of_tile(tokens: int, weight: torch.Tensor) -> int | None:
    tile = tile_of(tokens, weight)
    return tile and tile.rows


@pytest.mark.parametrize(("activation", "count"), [("silu", 1), ("gelu_pytorch_tanh", 1), ("gelu", 0), ("relu", 0)])
def test_an_mlp_is_known_by_what_it_does(activation: str, count: int) -> None:
    config = LlamaConfig(hidden_size=64, intermediate_size=128, hidden_act=activation)
    model, tokens = nn.Sequential(LlamaMLP(config)).to(DEVICE), torch.randn(1, 40, 64, device=DEVICE)
    before = model(tokens)
    fuse(model)
    assert gate(model, gated, joined) == count
    assert torch.allclose(model(tokens), before, atol=1e-6)


@pytest.mark.parametrize("activation", ["silu", "gelu_pytorch_tanh"])
def test_halves_of_packed_weights_are_joined_in_one_launch(activation: str) -> None:
    """Red: a packed weight that is dequantised for `gated`, or an activation that lies in memory for itself."""
    config = LlamaConfig(hidden_size=64, intermediate_size=128, hidden_act=activation)
    model, tokens = nn.Sequential(LlamaMLP(config)), torch.randn(1, 40, 64, device=DEVICE)
    for name in ("gate_proj", "up_proj", "down_proj"):
        linear = getattr(model[0], name)
        packed = PackedLinear(linear.out_features, linear.in_features, torch.float32)
        packed.hold(to_int8(name, linear.weight.detach()))
        setattr(model[0], name, packed)
    before = model.to(DEVICE)(tokens)
    assert fuse(model)
    assert gate(model, not_called, joined) == 1
    torch.testing.assert_close(model(tokens), before, atol=1e-5, rtol=1e-4)


def not_called(*_given: object) -> torch.Tensor:
    raise AssertionError("for weights in floats")
