"""Every format of quantised checkpoint, on every shape of model: kept packed, and computed as its numbers mean."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from quantised_folders import (
    SHAPES,
    Tensors,
    allocated,
    compare,
    is_matrix,
    logits,
    packed_modules,
    total,
    write_pair,
)
from quantised_formats import FORMATS, fp8_blocks
from quire.core.dtypes import DType
from quire.models.read import read_model
from quire.models.weight_layout import WeightFormat
from quire.worker.model.fused import fuse
from quire.worker.model.linears import lay_out


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("sort", FORMATS)
def test_a_format_computes_what_it_means_in_the_memory_that_is_planned(sort: str, name: str, tmp_path: Path) -> None:
    case = FORMATS[sort]
    if case.has_experts and name != "gpt_oss":
        pytest.skip("packs parameters of gpt_oss alone")
    pair = write_pair(tmp_path, name, case.of_matrices(), case.section)
    model = compare(pair)
    assert len(list(packed_modules(model))) >= len(model.model.layers) * 2
    lay_out(model)
    held = allocated(model)
    planned = total(read_model(str(pair.packed), weight_format=WeightFormat(DType.FP32, on_cpu=True)))
    most = 0.03 if "act-order" in sort else 0.01  # of tiny weights, orders that fused layers share are much
    assert abs(planned - held) <= most * held


@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
def test_blocks_of_rows_that_do_not_divide_a_weight(name: str, tmp_path: Path) -> None:
    """Merged experts get scales for each row; queries, keys and values are not fused."""
    section = {"quant_method": "fp8", "weight_block_size": [24, 32]}

    def pack(key: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor] | None:
        return fp8_blocks(key, weight, 24, 32) if is_matrix(key, weight) else None

    model = compare(write_pair(tmp_path, name, pack, section))
    expected = logits(model)
    fuse(model)
    torch.testing.assert_close(logits(model), expected)
