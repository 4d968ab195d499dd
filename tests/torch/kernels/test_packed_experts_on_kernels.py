"""Packed weights of experts and of a few tokens on kernels, compared with the dequantised weight."""

from __future__ import annotations

import pytest
import torch
from expert_case import clamped, one_by_one, silu
from packed_case import FORMS, weight
from paged_case import DEVICE
from torch.nn import functional

from examples import rest_in_soak
from quire.worker.kernels.experts import CLAMPED, HALVES, INTERLEAVED, SILU, Gate, Tile, by_experts
from quire.worker.kernels.few import Cut, few
from quire.worker.model.packed_kernels import product_of

TILES = (Tile(16, 16, 32), Tile(16, 16, 64, swaps=True), Tile(32, 32, 128, group=3))
CUTS = (Cut(8, 32), Cut(4, 64, stages=2), Cut(16, 128))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cut", rest_in_soak([(cut,) for cut in CUTS], [(CUTS[1],)]))
@pytest.mark.parametrize(("tokens", "outputs", "inputs"), [(1, 77, 96), (3, 40, 160), (4, 64, 64)])
def test_a_few_tokens_are_multiplied_as_by_the_dequantised_weight(
    form: str, cut: Cut, tokens: int, outputs: int, inputs: int
) -> None:
    packed, given = weight(form, outputs, inputs), torch.randn(tokens, inputs, device=DEVICE)
    product, bias = product_of(packed), torch.randn(outputs, device=DEVICE)
    assert product.sides is not None
    found = few(given, (product.weight, *product.sides), product.facts, bias, cut)
    right = functional.linear(given, packed.dequantised(), bias)
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("tile", "is_interleaved"),
    rest_in_soak(
        [(tile, is_interleaved) for tile in TILES for is_interleaved in (False, True)],
        [(TILES[1], False), (TILES[2], True)],
    ),
)
def test_experts_whose_weights_stay_packed(form: str, tile: Tile, is_interleaved: bool) -> None:
    up, down = weight(form, 5, 96, 160), weight(form, 5, 160, 48)
    given, chosen = torch.randn(11, 160, device=DEVICE), torch.stack([torch.randperm(5)[:3] for _ in range(11)])
    chosen, shares = chosen.int().to(DEVICE), torch.rand(11, 3, device=DEVICE)
    biases = torch.randn(5, 96, device=DEVICE), torch.randn(5, 160, device=DEVICE)
    gate = Gate(INTERLEAVED.value, CLAMPED.value, 1.702, 7.0) if is_interleaved else Gate(HALVES.value, SILU.value)
    products = (product_of(up)._replace(bias=biases[0]), product_of(down)._replace(bias=biases[1]))
    found = by_experts(given, (chosen, shares), products, gate, (tile, tile))
    join = (clamped, True) if is_interleaved else (silu, False)
    right = one_by_one(given, (chosen, shares), (up.dequantised(), down.dequantised()), biases, join)
    assert float((found - right).norm() / right.norm()) < 1e-4
