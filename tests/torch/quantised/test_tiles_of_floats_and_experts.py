"""Products in C of 4-bit and 8-bit floats, and of experts of every kind: what the reference computes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from test_tiles import EXACT, FOUND, assert_exact, exact, packed, rounded

from quantised_folders import SHAPES, Tensors, compare, is_matrix, logits, write_pair
from quantised_formats import FORMATS, fp8_blocks
from quire.native.library import CHOICE, OFF, Native
from quire.worker.model import packed_cpu
from quire.worker.model.linears import lay_out
from quire.worker.model.model import load
from quire.worker.model.packed_cpu import ExpertsOnTiles, LinearOnPlanes, lay_out_packed
from quire.worker.model.packed_experts import PackedProjection, multiply_each
from quire.worker.model.tiles import Tiles
from quire.worker.weights.packed import Codes, PackedWeight

pytestmark = pytest.mark.skipif(not FOUND, reason="Quire was installed without a C compiler")
MODEL_ERROR = 2e-2
"""Of logits, relative: 4 bits have ten times as much. Most are below 2e-3, but a near tie of a router may be decided
otherwise, as noise of 1e-4 in the weights does."""
COUNTS = (1, 2, 7, 8, 9, 33)


@pytest.fixture(autouse=True)
def random(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(CHOICE, raising=False)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.fixture(params=FOUND, ids=lambda version: version.name)
def version(request: pytest.FixtureRequest) -> Native:
    found: Native = request.param
    return found


def mx(*shape: int) -> PackedWeight:
    """Scales are powers of two, from 2^-8 to 2^-2."""
    *lead, inputs = shape
    codes = torch.randint(0, 256, (*lead, inputs // 2)).to(torch.uint8)
    exponents = torch.randint(119, 126, (*lead, inputs // 32)).to(torch.uint8)
    return PackedWeight("mx", Codes.FP4, codes, exponents.view(torch.float8_e8m0fnu), columns=32)


def nv(*shape: int) -> PackedWeight:
    *lead, inputs = shape
    codes = torch.randint(0, 256, (*lead, inputs // 2)).to(torch.uint8)
    scales = (torch.rand(*lead, inputs // 16) * 400 + 1).to(torch.float8_e4m3fn)
    factors = torch.full((*lead, 1), 0.5**14)
    return PackedWeight("nv", Codes.FP4, codes, scales, factors=factors, columns=16)


def e4m3(*shape: int, rows: int = 1, columns: int = 0) -> PackedWeight:
    """All codes but NaN, the smallest ones too."""
    *lead, outputs, inputs = shape
    codes = torch.randint(0, 256, (*lead, outputs, inputs)).to(torch.uint8)
    codes[(codes & 127) == 127] = 3
    scales = torch.rand(*lead, -(-outputs // rows), -(-inputs // (columns or inputs))) / 300
    return PackedWeight("f8", Codes.FP8, codes.view(torch.float8_e4m3fn), scales, rows=rows, columns=columns)


FLOATS4 = {"MXFP4": lambda: mx(100, 320), "NVFP4": lambda: nv(49, 96)}
FLOATS8 = {
    "for each output": lambda: e4m3(49, 320), "blocks": lambda: e4m3(200, 256, rows=128, columns=128),
    "odd blocks": lambda: e4m3(49, 192, rows=7, columns=96), "groups": lambda: e4m3(16, 64, columns=32),
}  # fmt: skip


@pytest.mark.parametrize("sort", FLOATS4)
def test_4_bit_floats_are_multiplied_as_integers(sort: str, version: Native) -> None:
    weight = FLOATS4[sort]()
    tiles = Tiles(weight, version)
    assert_exact(tiles.dequantised(), weight.dequantised())
    for count in COUNTS:
        tokens = torch.randn(count, weight.shape[1])
        assert_exact(tiles.multiply(tokens), exact(weight, rounded(tokens, tiles)))


@pytest.mark.parametrize("sort", FLOATS8)
def test_8_bit_floats_are_multiplied_exactly(sort: str, version: Native) -> None:
    """In fp32, the tokens too: nothing is rounded to integers."""
    weight = FLOATS8[sort]()
    tiles = Tiles(weight, version)
    assert tiles.dequantised().equal(weight.dequantised())
    for count in COUNTS:
        tokens = torch.randn(count, weight.shape[1]) * torch.logspace(-6, 6, count)[:, None]
        found, expected = tiles.multiply(tokens), exact(weight, tokens)
        assert ((found - expected).abs().amax(1) <= EXACT * expected.abs().amax(1)).all()


@pytest.mark.parametrize("make", [lambda: mx(64, 64), lambda: e4m3(64, 64)], ids=["fp4", "fp8"])
def test_a_token_does_not_depend_on_the_others(make: object, version: Native) -> None:
    """Bit for bit, though few tokens and many are computed by other code."""
    assert callable(make)
    tiles, tokens = Tiles(make(), version), torch.randn(21, 64)
    together = tiles.multiply(tokens)
    assert all(tiles.multiply(tokens[one : one + 1])[0].equal(together[one]) for one in range(21))


def of_experts(kind: Codes, count: int = 5) -> PackedWeight:
    if kind is Codes.FP4:
        return mx(count, 40, 64)
    if kind is Codes.FP8:
        return e4m3(count, 40, 64, rows=32, columns=32)
    experts = [packed(kind, 40 + one, 64, 32, kind is Codes.INT4) for one in range(count)]
    parts = [one.part(0, 40) for one in experts]
    return parts[0].having({name: torch.stack([one.tensors[name] for one in parts]) for name in parts[0].tensors})


@pytest.mark.parametrize("kind", Codes)
@pytest.mark.parametrize("ends", [[0, 1, 1, 1, 2], [3, 3, 20, 21, 40], [0, 0, 0, 0, 9], [0] * 5])
def test_each_pair_is_multiplied_by_its_expert(kind: Codes, ends: list[int], version: Native) -> None:
    """Experts without tokens, first, last and between; outputs that are no whole tiles."""
    weight = of_experts(kind)
    tiles, tokens = Tiles(weight, version), torch.randn(ends[-1], 64)
    found = tiles.multiply_experts(tokens, torch.tensor(ends))
    given = tokens if kind is Codes.FP8 or not len(tokens) else rounded(tokens, tiles)
    if len(tokens):
        assert_exact(found, multiply_each(given, weight, torch.tensor(ends)))
    else:
        assert found.shape == (0, 40)


def test_experts_leave_the_memory_that_they_had() -> None:
    weight = of_experts(Codes.FP4)
    held = PackedProjection(weight.shape, torch.float32)
    held.hold(weight)
    assert lay_out_packed(held) == 1
    assert isinstance(held, ExpertsOnTiles)
    assert sum(buffer.nbytes for buffer in held.buffers()) == 5 * 48 * 64 * 5 // 8
    tokens = torch.randn(6, 64)
    ends = torch.tensor([0, 2, 2, 5, 6])
    expected = multiply_each(tokens, weight, ends)
    found = held.multiply_experts(tokens, ends)
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()


def blocks_of_32(key: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor] | None:
    return fp8_blocks(key, weight, 32, 32) if is_matrix(key, weight) and weight.dim() == 2 else None


PACKS = {
    "fp8": (blocks_of_32, {"quant_method": "fp8", "weight_block_size": [32, 32]}),
    **{name: (FORMATS[name].of_matrices(), FORMATS[name].section)
       for name in ("fp8 per tensor, ModelOpt", "MXFP4, compressed-tensors", "NVFP4, ModelOpt", "AWQ", "int8")},
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("sort", PACKS)
def test_whole_models_compute_what_their_numbers_mean(
    name: str, sort: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Laid out for a CPU, experts too: no weight is left to the slow product. Tokens, minimums and NVFP4's scales are
    rounded, which costs a fraction of what the format's own rounding did."""
    pair = write_pair(tmp_path, name, *PACKS[sort])
    model, expected = load(pair.packed, torch.float32), logits(load(pair.dense, torch.float32))
    lay_out(model)
    assert "no fast product" not in caplog.text
    assert any(isinstance(module, LinearOnPlanes | ExpertsOnTiles) for module in model.modules())
    found = logits(model)
    assert (found - expected).norm() <= MODEL_ERROR * expected.norm()


def test_experts_of_gpt_oss_in_mxfp4_lie_in_tiles(tmp_path: Path) -> None:
    case = FORMATS["MXFP4"]
    pair = write_pair(tmp_path, "gpt_oss", case.of_matrices(), case.section)
    model = compare(pair)
    expected = logits(model)
    lay_out(model)
    assert sum(isinstance(module, ExpertsOnTiles) for module in model.modules()) == 2 * len(model.model.layers)
    assert (logits(model) - expected).norm() <= MODEL_ERROR * expected.norm()


def test_without_the_library_floats_and_experts_stay_with_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHOICE, OFF)
    assert not packed_cpu.fits(mx(32, 64))
    assert not packed_cpu.fits(e4m3(32, 64))
    assert not packed_cpu.fits(of_experts(Codes.INT4))
    assert packed_cpu.fits(packed(Codes.INT4, 32, 64, 32))
