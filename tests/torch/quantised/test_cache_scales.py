"""Scales of keys and values that a checkpoint has are those of a KV cache in 8 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from quantised_folders import LAYERS, Tensors, write_pair
from quantised_formats import FORMATS
from quire.core.dtypes import DType
from quire.core.errors import ModelError
from quire.models.read import read_model
from quire.plan.make import make_plan
from quire.plan.settings import Budget, Settings
from quire.worker.model.model import TorchModel, load
from quire.worker.pages.arena import Arena

ATTENTION = "model.layers.{}.self_attn."
FLOATS = {"num_bits": 8, "type": "float", "dynamic": False, "strategy": "tensor"}


def folder_with(path: Path, scales: Tensors, name: str = "llama", **section: Any) -> Path:
    """A checkpoint whose matrices are in fp8, with these tensors in addition."""
    case = FORMATS["fp8 per tensor, ModelOpt"]
    folder = write_pair(path, name, case.of_matrices(), {**case.section, **section}).packed
    file = folder / "model.safetensors"
    save_file(load_file(file) | scales, file, {"format": "pt"})
    return folder


def placed(folder: Path, kv_dtype: DType = DType.FP8) -> TorchModel:
    settings = Settings(max_length=64, max_requests=2, kv_dtype=kv_dtype, page_tokens={"": 16})
    plan = make_plan(read_model(str(folder)), settings, Budget(pool_bytes=1 << 20))
    return TorchModel(load(folder, torch.float32), Arena(plan.stages[0], torch.device("cpu")))


def scales_of(model: TorchModel) -> list[list[float]]:
    """Of each layer: keys' and values'."""
    parts = [model.context.arena.layers[layer] for layer in range(LAYERS)]
    return [[*part["key"].scales.tolist(), *part["value"].scales.tolist()] for part in parts]  # type: ignore[union-attr]


def pairs(key: str, value: str) -> Tensors:
    """Powers of two and others, other ones in each layer."""
    return {
        ATTENTION.format(layer) + own: torch.tensor(number * (layer + 1))
        for layer in range(LAYERS)
        for own, number in ((key, 0.03), (value, 0.5))
    }


SPELLINGS = [
    ("k_scale", "v_scale"), ("k_proj.k_scale", "v_proj.v_scale"), ("k_proj.output_scale", "v_proj.output_scale"),
]  # fmt: skip


@pytest.mark.parametrize("names", SPELLINGS)
def test_scales_of_the_checkpoint_are_used_under_each_name(names: tuple[str, str], tmp_path: Path) -> None:
    model = placed(folder_with(tmp_path, pairs(*names), kv_cache_scheme=FLOATS))
    heads = len(scales_of(model)[0]) // 2
    for layer, found in enumerate(scales_of(model)):
        wanted = [0.03 * (layer + 1)] * heads + [0.5 * (layer + 1)] * heads
        assert found == pytest.approx(wanted)
    assert (
        model.origin_of_scales
        == f"scales of keys and values in 8 bits: {2 * LAYERS} of {2 * LAYERS} from the checkpoint"
    )


def test_scales_can_be_one_for_each_head_or_one_for_both_parts(tmp_path: Path) -> None:
    own = {
        ATTENTION.format(0) + "k_scale": torch.tensor([0.25, 0.75]).view(2, 1, 1),
        ATTENTION.format(1) + "kv_scale": torch.tensor([0.125]),
    }
    model = placed(folder_with(tmp_path, own, kv_cache_scheme=FLOATS))
    first, second = scales_of(model)
    assert first[:2] == [0.25, 0.75]
    assert second == [0.125] * 4
    assert "3 of 4 from the checkpoint, 1 found at the start" in model.origin_of_scales


def test_other_scales_are_other_pages_and_wider_caches_have_none(tmp_path: Path) -> None:
    """Records of one are never taken for the other's."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with_own = folder_with(tmp_path / "one", pairs("k_scale", "v_scale"), kv_cache_scheme=FLOATS)
    without = folder_with(tmp_path / "two", {}, kv_cache_scheme=FLOATS)
    assert placed(with_own).scales != placed(without).scales
    wide = placed(with_own, DType.FP32)
    assert (wide.scales, wide.origin_of_scales) == ("", "")


@pytest.mark.parametrize(
    "section",
    [{"kv_cache_scheme": FLOATS | {"type": "int"}}, {"kv_cache_scheme": FLOATS | {"num_bits": 4}},
     {"kv_cache_quant_algo": "NVFP4"}],
)  # fmt: skip
def test_scales_for_other_codes_are_not_used(section: dict[str, Any], tmp_path: Path) -> None:
    model = placed(folder_with(tmp_path, pairs("k_scale", "v_scale"), **section))
    assert f"0 of {2 * LAYERS} from the checkpoint" in model.origin_of_scales


@pytest.mark.parametrize("number", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_no_calibration_has_set_is_found_at_the_start(number: float, tmp_path: Path) -> None:
    """Exporters write 0 or −1 where they have none."""
    own = pairs("k_scale", "v_scale") | {ATTENTION.format(0) + "k_scale": torch.tensor(number)}
    model = placed(folder_with(tmp_path, own, kv_cache_scheme=FLOATS))
    assert "3 of 4 from the checkpoint, 1 found" in model.origin_of_scales
    assert all(scale > 0 for layer in scales_of(model) for scale in layer)


def test_scales_of_a_wrong_shape_are_refused_by_name(tmp_path: Path) -> None:
    own = {ATTENTION.format(1) + "v_scale": torch.ones(3)}
    with pytest.raises(ModelError, match=r"layers.1.self_attn.v_scale has 3 numbers: 1 or 2 are expected"):
        placed(folder_with(tmp_path, own, kv_cache_scheme=FLOATS))
