"""Products in C: what the reference computes with tokens in 15 bits, for every set of instructions that this
processor has."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch
from test_packed_cpu import linear, packed
from torch import nn

from quire.native.library import CHOICE, Native, versions
from quire.worker.model.packed_cpu import LinearOnPlanes, lay_out_packed
from quire.worker.model.packed_linear import PackedEmbedding, multiply
from quire.worker.model.tiles import BLOCK, Tiles
from quire.worker.weights.packed import Codes, PackedWeight

FOUND = versions()
pytestmark = pytest.mark.skipif(not FOUND, reason="Quire was installed without a C compiler")
EXACT = 2e-5
"""Relative to the greatest result: sums in fp32, and one code of 15 bits that is rounded in the other direction."""
SHAPES = [
    (Codes.INT4, 64, 64, 32, True, 1),
    (Codes.SINT4, 61, 96, 32, False, 1),
    (Codes.INT4, 130, 256, 128, True, 1),
    (Codes.INT4, 1100, 64, 0, True, 1),
    (Codes.SINT4, 48, 192, 96, True, 7),
    (Codes.INT8, 64, 64, 32, False, 1),
    (Codes.INT8, 100, 576, 0, False, 1),
    (Codes.INT8, 49, 320, 64, True, 1),
    (Codes.INT4, 32, 80, 16, True, 1),
    (Codes.INT8, 20, 256, 16, False, 1),
]


@pytest.fixture(autouse=True)
def random() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.fixture(params=FOUND, ids=lambda version: version.name)
def version(request: pytest.FixtureRequest) -> Native:
    found: Native = request.param
    return found


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def rounded(tokens: torch.Tensor, tiles: Tiles) -> torch.Tensor:
    """To the codes that a product has for them: blocks of 32 have a scale each."""
    half = tiles.half_group or BLOCK
    blocks = tokens.unflatten(-1, (-1, min(half, BLOCK)))
    most, limit = blocks.abs().amax(-1, keepdim=True), 127.0 * 128
    return (torch.round(blocks * (limit / most)) * (most / limit)).flatten(-2)


def assert_exact(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=0, atol=EXACT * float(expected.abs().max()) + 1e-30)


def exact(weight: PackedWeight, tokens: torch.Tensor) -> torch.Tensor:
    return (tokens.double() @ weight.dequantised().double().T).float()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_product_is_that_of_rounded_tokens(
    shape: tuple[Codes, int, int, int, bool, int], version: Native, threads: int
) -> None:
    """For odd sizes, groups of many sizes, none to many tokens, and any number of threads; the weight can be read."""
    del threads
    weight = packed(*shape)
    tiles = Tiles(weight, version)
    for count in (0, 1, 2, 7, 8, 9, 33):
        tokens = torch.randn(count, weight.shape[1])
        if not count:
            assert tiles.multiply(tokens).shape == (0, weight.shape[0])
            continue
        assert_exact(tiles.multiply(tokens), exact(weight, rounded(tokens, tiles)))
        off = (tiles.multiply(tokens) - multiply(tokens, weight, None)).abs().max()
        size = weight.dequantised().norm(dim=1).max() * tokens.norm(dim=1).max()
        assert off <= 1e-4 * size
    assert_exact(tiles.dequantised(), weight.dequantised())


@pytest.mark.parametrize("kind", [Codes.INT4, Codes.INT8])
def test_a_token_does_not_depend_on_the_others(kind: Codes, version: Native, threads: int) -> None:
    """Bit for bit, alone and among others, on one thread and on several."""
    tiles = Tiles(packed(kind, 100, 320, 64, True), version)
    tokens = torch.randn(45, 320) * torch.logspace(-3, 3, 45)[:, None]
    together = tiles.multiply(tokens)
    torch.set_num_threads(1)
    for place in range(45):
        assert tiles.multiply(tokens[place : place + 1])[0].equal(together[place])
    assert threads


@pytest.mark.parametrize("kind", [Codes.SINT4, Codes.INT8])
@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_tokens_of_any_size_are_multiplied(kind: Codes, size: float, version: Native) -> None:
    weight = packed(kind, 32, 64, 32)
    tiles, tokens = Tiles(weight, version), torch.randn(3, 64) * size
    assert_exact(tiles.multiply(tokens), exact(weight, rounded(tokens, tiles)))
    assert tiles.multiply(torch.zeros(2, 64)).equal(torch.zeros(2, 32))


@pytest.mark.parametrize("kind", [Codes.INT4, Codes.INT8])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_stays_none(kind: Codes, wrong: float, version: Native) -> None:
    """In its own row; a zero in its place would hide memory that was never written."""
    tiles, tokens = Tiles(packed(kind, 32, 64, 32), version), torch.randn(3, 64)
    tokens[1, 40] = wrong
    found = tiles.multiply(tokens)
    assert found[1].isnan().all()
    assert found[[0, 2]].isfinite().all()


@pytest.mark.parametrize("factor", [2.0**-20, 2.0**16])
def test_scales_beyond_fp16_keep_their_precision(factor: float, version: Native) -> None:
    weight = packed(Codes.INT4, 32, 64, 32, True)
    assert weight.minimums is not None
    far = weight.having({"scales": weight.scales.float() * factor, "minimums": weight.minimums.float() * factor})
    tokens = torch.randn(3, 64)
    near, found = (Tiles(one, version).multiply(tokens) for one in (weight, far))
    torch.testing.assert_close(found, near * factor, rtol=0, atol=0)


def test_all_sets_of_instructions_with_wide_registers_agree() -> None:
    """Bit for bit: they multiply and add in one order."""
    wide = [version for version in FOUND if version.name != "plain C"]
    if len(wide) < 2:
        pytest.skip("this processor has one set of instructions")
    for kind in (Codes.INT4, Codes.INT8):
        weight, tokens = packed(kind, 48, 320, 64, True), torch.randn(9, 320)
        first, *others = (Tiles(weight, version).multiply(tokens) for version in wide)
        assert all(first.equal(other) for other in others)


def test_a_module_holds_the_bytes_of_its_tiles() -> None:
    weight = packed(Codes.INT8, 50, 64, 32)
    tiles = Tiles(weight, FOUND[0])
    assert sum(buffer.nbytes for buffer in nn.ModuleList([tiles]).buffers()) == 64 * 64 * 9 // 8


def test_a_tied_head_needs_no_second_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its greatest logits are exact enough to keep their places; torch's product, in bf16, computes them again."""
    monkeypatch.delenv(CHOICE, raising=False)
    weight = packed(Codes.INT8, 200, 64, 32)
    embedding, head = PackedEmbedding(200, 64, torch.float32), linear(weight)
    embedding.hold(weight)
    head.share(embedding)
    assert lay_out_packed(nn.ModuleList([embedding, head])) == 1
    assert type(head) is LinearOnPlanes
    tokens = torch.randn(40, 64)
    found, expected = head(tokens), multiply(tokens, weight, None)
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()
    assert found.argmax(-1).equal(expected.argmax(-1))


@pytest.mark.story
def test_threads_that_come_late_lose_and_repeat_nothing() -> None:
    """One product after another, with pauses in which threads fall asleep. The end of a product was stored in two
    places, and a thread that was interrupted between them could end the next one."""
    before, tiles = torch.get_num_threads(), Tiles(packed(Codes.INT4, 640, 64, 32, True), FOUND[0])
    torch.set_num_threads(3)
    try:
        tokens = torch.randn(2, 64)
        first = tiles.multiply(tokens)
        for turn in range(3000):
            assert tiles.multiply(tokens).equal(first)
            if turn % 100 == 0:
                time.sleep(0.001)
    finally:
        torch.set_num_threads(before)
