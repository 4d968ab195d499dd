"""The one form of weights in few bits."""

import pytest
import torch

from quire.core.errors import ModelError
from quire.worker.weights.packed import Codes, PackedWeight


def test_each_code_is_multiplied_by_the_scale_of_its_block() -> None:
    """Blocks of 2 × 3 codes; the last ones are cut off by the weight's edge."""
    codes = torch.arange(-10, 10, dtype=torch.int8).view(4, 5)
    scales = torch.tensor([[1.0, 10.0], [100.0, 1000.0]])
    found = PackedWeight("w", Codes.INT8, codes, scales, rows=2, columns=3).dequantised()
    expected = torch.tensor([[codes[o, i] * scales[o // 2, i // 3] for i in range(5)] for o in range(4)])
    assert found.equal(expected)


def test_low_nibbles_come_first_and_minimums_are_added() -> None:
    codes = torch.tensor([[0x21, 0xF3]], dtype=torch.uint8)
    scales, minimums = torch.tensor([[2.0, 3.0]]), torch.tensor([[-1.0, 0.5]])
    found = PackedWeight("w", Codes.INT4, codes, scales, minimums, columns=2).dequantised()
    assert found.tolist() == [[1.0, 3.0, 9.5, 45.5]]


def test_fp4_codes_have_the_values_of_e2m1() -> None:
    codes = torch.tensor([[0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]], dtype=torch.uint8)
    positive = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    found = PackedWeight("w", Codes.FP4, codes, torch.ones(1, 1)).dequantised()
    assert found.tolist() == [[*positive, *(-value for value in positive)]]


def test_scales_that_do_not_fit_the_codes_are_refused_by_name() -> None:
    codes = torch.zeros(4, 64, dtype=torch.int8)
    with pytest.raises(ModelError, match=r"model.w has scales of shape \(4, 3\), expected is \(4, 2\)"):
        PackedWeight("model.w", Codes.INT8, codes, torch.ones(4, 3), columns=32)


def test_codes_of_another_type_are_refused_by_name() -> None:
    with pytest.raises(ModelError, match=r"model.w has codes of torch.int32"):
        PackedWeight("model.w", Codes.INT4, torch.zeros(4, 8, dtype=torch.int32), torch.ones(4, 1))
