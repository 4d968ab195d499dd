"""Formats that no reader here reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from quantised_folders import write_pair
from quire.core.errors import ModelError
from quire.models.read import read_config
from quire.worker.model.model import load


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
