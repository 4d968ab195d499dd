"""Linear layers that are put together yield what they yielded apart, and their weights lie in memory once."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import nn

from quire.worker.model.fused import FusedPart, FusedProduct, fuse


class Gated(nn.Module):
    def __init__(self, has_bias: bool = False) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(8, size, bias=has_bias) for size in (12, 20))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.gate_proj(tokens), self.up_proj(tokens)], dim=-1)


class Crossed(nn.Module):
    """Keys and values are of other tokens than queries."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        others = 2 * tokens
        return torch.stack([self.v_proj(others), self.q_proj(tokens), self.k_proj(others), self.q_proj(others)])


@torch.inference_mode()
def test_products_are_the_same_together_and_apart() -> None:
    for module in (Gated(), Gated(has_bias=True), Crossed()):
        tokens = torch.randn(5, 8)
        apart = module(tokens)
        assert fuse(module) == 1
        for _ in range(2):
            assert torch.allclose(module(tokens), apart, atol=1e-6)


@torch.inference_mode()
def test_layers_that_read_the_same_tokens_multiply_once() -> None:
    module = Gated()
    fuse(module)
    calls = []
    original = torch.nn.functional.linear
    torch.nn.functional.linear = lambda *given: calls.append(1) or original(*given)  # type: ignore[assignment]
    try:
        module(torch.randn(5, 8))
    finally:
        torch.nn.functional.linear = original
    assert len(calls) == 1


def test_what_was_put_together_goes_before_the_next_is() -> None:
    """Else all weights would be in memory twice."""
    model = nn.Sequential(Gated(), Gated())
    first = weakref.ref(model[0].gate_proj)
    made = []

    def noting(share: FusedProduct, linears: list[nn.Linear], init: Any = FusedProduct.__init__) -> None:
        made.append(first() is None)
        init(share, linears)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(FusedProduct, "__init__", noting)
        fuse(model)
    assert made == [False, True]


def test_weights_are_views_of_one_and_nothing_is_kept_of_a_step() -> None:
    module = Gated()
    fuse(module)
    parts = [module.gate_proj, module.up_proj]
    assert all(isinstance(part, FusedPart) for part in parts)
    assert len({part.weight.untyped_storage().data_ptr() for part in parts}) == 1
    module(torch.randn(5, 8))
    assert parts[0].share.found is None  # type: ignore[attr-defined]


def test_layers_that_differ_stay_apart() -> None:
    module = Gated()
    module.up_proj = nn.Linear(9, 20)
    assert fuse(module) == 0
