"""How experts' products are cut: the measured rule, and weights that tiles do not divide."""

from __future__ import annotations

import math

import pytest
import torch
from expert_case import one_by_one, silu
from packed_case import weight
from paged_case import DEVICE

from quire.worker.kernels.experts import HALVES, SILU, Gate, Product, by_experts
from quire.worker.kernels.octets import FP4, FP8
from quire.worker.model.expert_tiles import EXACT, LARGE, MIDDLE, SMALL, WIDE, fitted, measured, tiles_for
from quire.worker.model.packed_kernels import product_of

EXPERTS, EACH = 6, 3
GATE = Gate(HALVES.value, SILU.value)


def products(width: int, inputs: int, dtype: torch.dtype) -> tuple[Product, Product]:
    torch.manual_seed(0)
    up, down = torch.randn(EXPERTS, 2 * width, inputs), torch.randn(EXPERTS, inputs, width)
    return Product(up.to(DEVICE, dtype)), Product(down.to(DEVICE, dtype))


def choice(tokens: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    chosen = torch.stack([torch.randperm(EXPERTS)[:EACH] for _ in range(tokens)])
    return chosen.int().to(DEVICE), torch.rand(tokens, EACH).to(DEVICE, dtype)


@pytest.mark.parametrize(("width", "inputs"), [(56, 72), (24, 36), (130, 64)])
@pytest.mark.parametrize("tokens", [3, 40, 128, 200])
def test_weights_that_no_tile_divides_are_multiplied_whole(width: int, inputs: int, tokens: int) -> None:
    both, dtype = products(width, inputs, torch.bfloat16), torch.bfloat16
    given, (chosen, shares) = torch.randn(tokens, inputs).to(DEVICE, dtype), choice(tokens, dtype)
    tiles = tiles_for(chosen.numel(), both, given)
    assert tiles[0].rows == tiles[1].rows == {3: 16, 40: 32, 128: 64, 200: 128}[tokens]
    found = by_experts(given, (chosen, shares), both, GATE, tiles)
    right = one_by_one(given, (chosen, shares), (both[0].weight, both[1].weight), None, (silu, False))
    assert float((found.float() - right).norm() / right.norm()) < 1e-2


@pytest.mark.parametrize("form", ["MXFP4", "fp8 in blocks", "int4"])
@pytest.mark.parametrize("tokens", [3, 40, 128])
def test_packed_weights_that_no_tile_divides_are_multiplied_whole(form: str, tokens: int) -> None:
    up, down = weight(form, EXPERTS, 2 * 160, 96), weight(form, EXPERTS, 96, 160)
    both, dtype = (product_of(up), product_of(down)), torch.bfloat16
    given, (chosen, shares) = torch.randn(tokens, 96).to(DEVICE, dtype), choice(tokens, dtype)
    found = by_experts(given, (chosen, shares), both, GATE, tiles_for(chosen.numel(), both, given))
    plain = up.dequantised().to(dtype), down.dequantised().to(dtype)
    right = one_by_one(given, (chosen, shares), plain, None, (silu, False))
    assert float((found.float() - right).norm() / right.norm()) < 2e-2


@pytest.mark.parametrize(("mean", "rows"), [(0.5, 16), (4, 16), (16, 32), (64, 64), (512, 128)])
def test_the_measured_loads_have_the_tiles_that_were_fastest(mean: float, rows: int) -> None:
    assert measured(mean, None) == {16: SMALL, 32: MIDDLE, 64: WIDE, 128: LARGE}[rows]
    assert all(tile.rows == rows for tile in measured(mean, None))


def test_fp4_has_a_tile_of_its_own_for_few_tokens() -> None:
    assert measured(4, FP4.value)[1] != measured(4, FP8.value)[1]


def test_numbers_in_fp32_are_multiplied_in_tiles_of_their_own() -> None:
    both = products(56, 72, torch.float32)
    assert tiles_for(10_000, both, torch.zeros(1, 72, device=DEVICE)) == (EXACT, EXACT)


def test_a_tile_is_no_wider_than_the_weight_and_has_the_stages_that_fit() -> None:
    wide = LARGE[1]
    assert fitted(wide, 4096, 1, math.inf) == wide
    assert fitted(wide, 70, 1, math.inf).columns == 128
    assert fitted(wide, 4, 1, math.inf).columns == 16
    bytes_of_a_stage = 2 * wide.depth * (wide.rows + wide.columns)
    assert fitted(wide, 4096, 1, 2.5 * bytes_of_a_stage).stages == 2
    assert fitted(wide, 4096, 1, 0).stages == 1
