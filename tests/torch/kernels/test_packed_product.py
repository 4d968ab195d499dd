"""Products with packed weights in one launch, compared with the dequantised weight."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from packed_case import FORMS, weight
from paged_case import DEVICE
from torch.nn import functional

from quantised_folders import logits, packed_modules, write_pair
from quantised_formats import FORMATS
from quire.worker.kernels import rounded, split
from quire.worker.model.fused import fuse
from quire.worker.model.model import load
from quire.worker.model.packed_experts import multiply_each
from quire.worker.model.packed_kernels import MANY_ROWS, packed_grouped, packed_product, product_of
from quire.worker.model.packed_linear import use_products
from quire.worker.weights.packed import Codes, PackedWeight


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("tokens", "outputs", "inputs"), [(1, 80, 96), (2, 80, 96), (3, 80, 96), (70, 64, 64), (MANY_ROWS, 80, 96)]
)
def test_a_product_is_that_of_the_dequantised_weight(form: str, tokens: int, outputs: int, inputs: int) -> None:
    packed, given = weight(form, outputs, inputs), torch.randn(1, tokens, inputs, device=DEVICE)
    bias = torch.randn(outputs, device=DEVICE)
    expected = functional.linear(given, packed.dequantised(), bias)
    torch.testing.assert_close(packed_product(given, packed, bias), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("form", FORMS)
def test_a_weight_that_is_written_out_in_parts_is_the_whole(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.worker.kernels.few.PART_NUMBERS", 50 * 160)
    packed, given = weight(form, 111, 160), torch.randn(MANY_ROWS, 160, device=DEVICE)
    expected = functional.linear(given, packed.dequantised())
    torch.testing.assert_close(packed_product(given, packed, None), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("tokens", [2, 16, 30, 70])
@pytest.mark.parametrize("form", ["int4", "MXFP4", "fp8 in blocks"])
def test_products_in_bf16_are_near_those_of_the_dequantised_weight(form: str, tokens: int) -> None:
    packed, given = weight(form, 80, 320), torch.randn(tokens, 320, device=DEVICE, dtype=torch.bfloat16)
    expected = functional.linear(given.float(), packed.dequantised())
    found = packed_product(given, packed, None)
    assert float((found.float() - expected).norm() / expected.norm()) < 1e-2


@pytest.mark.parametrize("form", FORMS)
def test_inputs_that_are_divided_among_programs_are_added(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More parts than the inputs fill, and twice: the first product leaves its marks at 0. Red: a part that is left
    out or added twice."""
    monkeypatch.setattr(split, "LEAST_INPUTS", 32)
    packed, given = weight(form, 80, 320), torch.randn(20, 320, device=DEVICE)
    assert split.form_of(product_of(packed), 20, given.dtype)[0].parts == split.MOST_PARTS
    expected = functional.linear(given, packed.dequantised())
    for _ in range(2):
        torch.testing.assert_close(packed_product(given, packed, None), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("results", [1, 1 << 30])
def test_tokens_are_rounded_where_a_weight_in_fp8_has_many(results: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scaled by the library, and by a kernel. Each token has its own scale: one is a thousand times another. Red: a
    scale for all of them, or a weight's scales in another order."""
    monkeypatch.setattr(rounded, "SCALED_RESULTS", results)
    scales, codes = torch.rand(80, 1) + 0.1, torch.randn(80, 96).to(torch.float8_e4m3fn)
    packed = PackedWeight("w", Codes.FP8, codes, scales).mapped(lambda tensor: tensor.to(DEVICE))
    given = (torch.randn(40, 96) * torch.logspace(-2, 1, 40)[:, None]).bfloat16().to(DEVICE)
    own = given.float().abs().amax(1, keepdim=True) / 448
    expected = functional.linear((given.float() / own).to(torch.float8_e4m3fn).float() * own, packed.dequantised())
    found = packed_product(given, packed, None).float()
    assert float(((found - expected).norm(dim=1) / expected.norm(dim=1)).max()) < 2e-2


def test_inputs_in_another_order_are_multiplied_in_it() -> None:
    plain, order = weight("int4", 64, 64), torch.randperm(64, dtype=torch.int32).to(DEVICE)
    packed = plain.having({"order": order} | plain.tensors)
    given = torch.randn(5, 64, device=DEVICE)
    expected = functional.linear(given, packed.dequantised())
    torch.testing.assert_close(packed_product(given, packed, None), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("form", ["int4", "MXFP4", "fp8 in blocks"])
@pytest.mark.parametrize("ends", [[3, 3, 20, 21, 40], [0, 0, 0, 0, 40], [40, 40, 40, 40, 40]])
def test_each_expert_multiplies_its_own_pairs(form: str, ends: list[int]) -> None:
    packed, given = weight(form, 5, 96, 64), torch.randn(40, 64, device=DEVICE)
    places = torch.tensor(ends, device=DEVICE)
    expected = multiply_each(given, packed, places)
    torch.testing.assert_close(packed_grouped(given, packed, places), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "sort"), [("llama", "int4 packed act-order"), ("gpt_oss", "MXFP4"), ("qwen3_moe", "NVFP4, ModelOpt")]
)
def test_a_model_computes_the_same_on_kernels(name: str, sort: str, tmp_path: Path) -> None:
    case = FORMATS[sort]
    model = load(write_pair(tmp_path, name, case.of_matrices(), case.section).packed, torch.float32)
    expected = logits(model)
    fuse(model)
    assert use_products(model, packed_product, packed_grouped) == len(list(packed_modules(model)))
    torch.testing.assert_close(logits(model), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("is_grouped", [False, True])
def test_a_product_is_one_operation_for_the_compiler(is_grouped: bool) -> None:
    packed = weight("int4", 5, 96, 64) if is_grouped else weight("int4", 96, 64)
    given, ends = torch.randn(40, 64, device=DEVICE), torch.tensor([3, 3, 20, 21, 40], device=DEVICE)

    def run(tokens: torch.Tensor) -> torch.Tensor:
        return packed_grouped(tokens, packed, ends) if is_grouped else packed_product(tokens, packed, None)

    torch.testing.assert_close(torch.compile(run, backend="eager", fullgraph=True)(given), run(given))
