"""Packed weights in planes, where the library in C is not there: what the reference computes, as exactly as products in
bf16 can be."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from quire.native.library import CHOICE, OFF
from quire.worker.model import packed_cpu
from quire.worker.model.fused import fuse
from quire.worker.model.packed_cpu import HeadOnPlanes, LinearOnPlanes, ProductOnPlanes, lay_out_packed
from quire.worker.model.packed_linear import PackedEmbedding, PackedLinear, multiply
from quire.worker.weights.packed import Codes, PackedWeight

torch.set_num_threads(1)
NEAR = 1e-2
"""Relative to the result: bf16 has 8 bits."""


@pytest.fixture(autouse=True)
def without_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHOICE, OFF)


def packed(
    kind: Codes, outputs: int, inputs: int, columns: int, has_minimums: bool = False, rows: int = 1
) -> PackedWeight:
    random = torch.Generator().manual_seed(outputs)
    stored = inputs // 2 if kind.has_nibbles else inputs
    low, high = (-128, 128) if kind is Codes.INT8 else (0, 256)
    codes = torch.randint(low, high, (outputs, stored), generator=random).to(kind.stored)
    shape = (-(-outputs // rows), -(-inputs // (columns or inputs)))
    scales = torch.rand(shape, generator=random).half() / 16
    minimums = torch.randn(shape, generator=random).half() / 4 if has_minimums else None
    return PackedWeight("w", kind, codes, scales, minimums, columns=columns, rows=rows)


def linear(weight: PackedWeight, bias: torch.Tensor | None = None) -> PackedLinear:
    outputs, inputs = weight.shape
    made = PackedLinear(outputs, inputs, torch.float32, None if bias is None else nn.Parameter(bias))
    made.hold(weight)
    return made


def assert_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.shape == expected.shape
    assert found.dtype is expected.dtype
    assert (found - expected).norm() <= NEAR * expected.norm()


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    ("kind", "outputs", "inputs", "columns", "has_minimums", "rows"),
    [
        (Codes.INT4, 64, 64, 32, True, 1),
        (Codes.INT4, 61, 96, 32, False, 1),
        (Codes.INT4, 130, 256, 128, True, 1),
        (Codes.INT4, 2100, 64, 0, True, 1),
        (Codes.INT4, 48, 192, 96, True, 7),
        (Codes.INT8, 64, 64, 32, False, 1),
        (Codes.INT8, 100, 576, 0, False, 1),
        (Codes.INT8, 49, 320, 64, True, 1),
        (Codes.INT4, 32, 80, 16, True, 1),
        (Codes.INT8, 20, 256, 16, False, 1),
    ],
)
def test_a_product_is_the_references(
    kind: Codes, outputs: int, inputs: int, columns: int, has_minimums: bool, rows: int, has_bias: bool
) -> None:
    """For odd sizes, groups of many sizes, and none to many tokens; the weight can still be read."""
    weight = packed(kind, outputs, inputs, columns, has_minimums, rows)
    bias = torch.randn(outputs) if has_bias else None
    layer = linear(weight, bias)
    assert lay_out_packed(layer) == 1
    assert isinstance(layer, LinearOnPlanes)
    for tokens in (0, 1, 2, 7, 200):
        x = torch.randn(1, tokens, inputs)
        assert_near(layer(x), multiply(x, weight, bias))
        assert_near(layer(x[0]), multiply(x[0], weight, bias))
    strided = torch.randn(inputs, 5).T
    assert_near(layer(strided), multiply(strided, weight, bias))
    assert_near(layer.weight, weight.dequantised())


def test_inputs_in_an_order_of_their_own_are_brought_into_it() -> None:
    weight = packed(Codes.INT4, 32, 64, 32, True)
    weight = weight.having({"order": torch.randperm(64).int()})
    layer, x = linear(weight), torch.randn(3, 64)
    lay_out_packed(layer)
    assert_near(layer(x), multiply(x, weight, None))


@pytest.mark.parametrize(
    "weight",
    [
        packed(Codes.FP8, 32, 64, 32),
        packed(Codes.FP4, 32, 64, 32),
        packed(Codes.INT4, 32, 64, 8),
        packed(Codes.INT8, 32, 48, 0),
    ],
    ids=["fp8", "fp4", "groups of 8", "48 inputs"],
)
def test_what_does_not_fit_stays_with_the_reference(weight: PackedWeight, caplog: pytest.LogCaptureFixture) -> None:
    """And the log says that it is slow."""
    layer = linear(weight)
    assert lay_out_packed(layer) == 0
    assert type(layer) is PackedLinear
    assert "1 of 1 packed weights have no fast product on this CPU" in caplog.text
    assert f"such as w ({weight.kind.value})" in caplog.text


def test_other_processors_have_no_such_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_cpu, "has_nibble_products", lambda: False)
    assert lay_out_packed(linear(packed(Codes.INT4, 32, 64, 32))) == 0


def test_fused_layers_are_one_product_on_planes() -> None:
    """With biases, and outputs that are no multiple of what torch packs together."""
    layer, x = nn.Module(), torch.randn(4, 64)
    weights = {name: packed(Codes.INT4, outputs, 64, 32, True) for name, outputs in
               (("q_proj", 48), ("k_proj", 13), ("v_proj", 16))}  # fmt: skip
    biases = {name: torch.randn(weight.shape[0]) for name, weight in weights.items()}
    for name, weight in weights.items():
        setattr(layer, name, linear(weight, biases[name]))
    assert fuse(layer) == 1
    assert lay_out_packed(layer) == 1
    for name, weight in weights.items():
        part = getattr(layer, name)
        assert isinstance(part.share, ProductOnPlanes)
        assert_near(part(x), multiply(x, weight, biases[name]))
        assert_near(part.weight, weight.dequantised())


def test_a_tied_head_leaves_the_embedding_its_weight_and_memory_is_what_the_plan_counts() -> None:
    weight = packed(Codes.INT8, 50, 64, 32)
    embedding, heads = PackedEmbedding(50, 64, torch.float32), [linear(weight), linear(weight)]
    embedding.hold(weight)
    both = nn.ModuleList([embedding, *heads])
    assert lay_out_packed(both) == 1
    assert embedding(torch.tensor([3, 49])).equal(weight.dequantised()[[3, 49]])
    assert_near(heads[1](torch.eye(64)).T, weight.dequantised())
    found = sum(buffer.nbytes for buffer in {id(one): one for one in heads[0].buffers()}.values())
    assert found == 64 * 64 * 10 // 8  # outputs are filled up to 64; 4 bits and two numbers in bf16 for 32, twice


@pytest.mark.parametrize("has_bias", [False, True])
def test_the_greatest_logits_of_a_tied_head_are_exact(has_bias: bool) -> None:
    """For any number of tokens; the others are near."""
    weight, bias = packed(Codes.INT8, 200, 64, 32), torch.randn(200) if has_bias else None
    embedding, head = PackedEmbedding(200, 64, torch.float32), linear(weight, bias)
    embedding.hold(weight)
    head.share(embedding)
    assert lay_out_packed(nn.ModuleList([embedding, head])) == 1
    assert isinstance(head, HeadOnPlanes)
    for tokens in (0, 1, 40):
        x = torch.randn(1, tokens, 64)
        found, expected = head(x), multiply(x, weight, bias)
        assert_near(found, expected)
        best = expected.topk(5).indices
        torch.testing.assert_close(found.gather(-1, best), expected.gather(-1, best))
        assert found.argmax(-1).equal(expected.argmax(-1))
