"""Planned bytes of weights are those that lie in memory, for every format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from quantised_folders import SHAPES, write_pair
from quantised_formats import FORMATS
from quire.core.dtypes import DType
from quire.core.errors import ModelError
from quire.models.read import read_config, read_model
from quire.models.shape import ModelShape
from quire.models.weight_layout import WeightFormat
from quire.worker.model.linears import lay_out
from quire.worker.model.model import load


@pytest.mark.parametrize("sort", FORMATS)
def test_planned_bytes_are_those_in_memory(sort: str, tmp_path: Path) -> None:
    case = FORMATS[sort]
    for name in SHAPES if sort in ("fp8 blocks", "AWQ", "MXFP4") else ("llama", "deepseek_v3"):
        if case.has_experts and name != "gpt_oss":
            continue
        (tmp_path / name).mkdir()
        folder = write_pair(tmp_path / name, name, case.of_matrices(), case.section).packed
        model = load(folder, torch.float32)
        lay_out(model)
        held, planned = allocated(model), read_model(str(folder), weight_format=WeightFormat(DType.FP32, on_cpu=True))
        most = 0.03 if "act-order" in sort else 0.01  # of tiny weights, orders that fused layers share are much
        assert abs(total(planned) - held) <= most * held, (name, total(planned), held)


def total(shape: ModelShape) -> int:
    layers = sum(layer.weight_bytes + layer.replicated_weight_bytes for layer in shape.layers)
    return layers + shape.embedding_bytes + shape.head_bytes


def allocated(model: Any) -> int:
    """Parameters and buffers of weights; rotary tables and the like are no weights."""
    packed = ("codes", "scales", "minimums", "factors", "order", "panels", "_0", "_1")
    tensors = [*model.parameters()]
    tensors += [tensor for name, tensor in model.named_buffers() if name.endswith((*packed, "correction_bias"))]
    return sum({tensor.untyped_storage().data_ptr(): tensor.nbytes for tensor in tensors}.values())


@pytest.mark.parametrize(
    ("section", "named"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "by bitsandbytes"),
        ({"quant_method": "aqlm"}, "by aqlm"),
        ({"bits": 4, "group_size": 64}, "by a method that quantization_config.quant_method does not name"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "by awq in version gemv"),
        ({"quant_method": "gptq", "bits": 3}, "by gptq with 3 bits"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "by gptq in the layout marlin"),
        ({"quant_method": "compressed-tensors", "format": "marlin-24"}, "by compressed-tensors as marlin-24"),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"}, "by modelopt as W4A16_AWQ"),
        ({"quant_method": "auto-round", "packing_format": "auto_round"}, "by auto-round as auto_round"),
    ],
)
def test_plan_and_loader_refuse_a_format_in_the_same_words(section: dict[str, Any], named: str, tmp_path: Path) -> None:
    pair = write_pair(tmp_path, "llama", lambda _key, _weight: None, section)
    with pytest.raises(ModelError) as loaded:
        load(pair.packed, torch.float32)
    with pytest.raises(ModelError) as planned:
        read_config(json.loads((pair.packed / "config.json").read_text()), "a model")
    assert str(loaded.value) == str(planned.value)
    assert named in str(loaded.value)
    assert "\n" not in str(loaded.value)
