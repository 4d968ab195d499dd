"""Quantised checkpoints that are not whole, or say what cannot be: one line with the file and the tensor."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from quantised_folders import Tensors, write_pair
from quantised_formats import FORMATS
from quire.core.errors import ModelError
from quire.models.read import read_model
from quire.worker.model.model import load

NAME = "model.layers.1.mlp.up_proj"


def _change(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], None]:
    def apply(tensors: Tensors) -> None:
        tensors[name] = change(tensors[name]).contiguous()

    return apply


def _drop(name: str) -> Callable[[Tensors], None]:
    def apply(tensors: Tensors) -> None:
        del tensors[name]

    return apply


DAMAGES: dict[str, tuple[str, Callable[[Tensors], None], str]] = {
    "wrong scales": (
        "fp8 blocks",
        _change(f"{NAME}.weight_scale_inv", lambda own: own[:, :1]),
        f"{NAME}.weight has scales",
    ),
    "no scales": ("fp8 blocks", _drop(f"{NAME}.weight_scale_inv"), f"{NAME}.weight is in F8_E4M3 and has no scale"),
    "e5m2": (
        "fp8 blocks",
        _change(f"{NAME}.weight", lambda own: own.to(torch.float8_e5m2)),
        f"{NAME}.weight is in F8_E5M2",
    ),
    "scales of int8": (
        "int8",
        _change(f"{NAME}.weight_scale", lambda own: own[:7]),
        f"{NAME}.weight has scales of shape",
    ),
    "zero points": (
        "int8 asymmetric",
        _change(f"{NAME}.weight_zero_point", lambda own: own[:7]),
        f"{NAME}.weight has shape",
    ),
    "act-order beyond": (
        "GPTQ act-order",
        _change(f"{NAME}.g_idx", lambda own: own + 1),
        f"{NAME}.g_idx does not divide",
    ),
    "act-order below": (
        "GPTQ act-order",
        _change(f"{NAME}.g_idx", lambda own: own - 5),
        f"{NAME}.g_idx does not divide",
    ),
    "act-order unequal": (
        "int4 packed act-order",
        _change(f"{NAME}.weight_g_idx", lambda own: own * 0),
        f"{NAME}.weight_g_idx does",
    ),
    "no zeros": ("GPTQ", _drop(f"{NAME}.qzeros"), f"has no tensor {NAME}.qzeros"),
    "groups of GPTQ": (
        "GPTQ",
        _change(f"{NAME}.scales", lambda own: own[:1]),
        f"{NAME}.qweight has zero points of shape",
    ),
    "words of GPTQ": ("GPTQ", _change(f"{NAME}.qweight", lambda own: own[:3]), f"{NAME}.qweight has shape (3, 128)"),
    "words of AWQ": ("AWQ", _change(f"{NAME}.qweight", lambda own: own.long()), f"{NAME}.qweight has shape (64, 16)"),
    "scaled activations": (
        "AWQ",
        lambda tensors: tensors.update({"model.layers.1.mlp.act.scales": torch.ones(128)}),
        "mlp.act.scales belongs to no weight",
    ),
    "groups of AWQ": (
        "AWQ",
        _change(f"{NAME}.scales", lambda own: torch.cat([own, own[:1]])),
        f"{NAME}.qweight has 3 groups",
    ),
    "bits of words": (
        "int4 packed",
        _change(f"{NAME}.weight_packed", lambda own: own[:, :5]),
        f"{NAME}.weight_packed has 160 bits",
    ),
    "no shape": ("int4 packed", _drop(f"{NAME}.weight_shape"), f"has no tensor {NAME}.weight_shape"),
    "no factor": ("NVFP4, ModelOpt", _drop(f"{NAME}.weight_scale_2"), f"has no tensor {NAME}.weight_scale_2"),
    "another shape": (
        "fp8 per channel, FBGEMM",
        _change(f"{NAME}.weight", lambda own: own[:, :32]),
        f"another shape for {NAME}.weight",
    ),
    "no weight": ("GPTQ", _drop(f"{NAME}.qweight"), f"has no weights for {NAME}.weight"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_tensor_is_named(damage: str, tmp_path: Path) -> None:
    sort, apply, named = DAMAGES[damage]
    folder = write_pair(tmp_path, "llama", FORMATS[sort].of_matrices(), FORMATS[sort].section).packed
    tensors = load_file(folder / "model.safetensors")
    apply(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    _refused(folder, named)


def test_experts_of_unequal_forms_and_missing_ones_are_named(tmp_path: Path) -> None:
    case, own = FORMATS["int8"], "model.layers.1.mlp.experts"
    folder = write_pair(tmp_path, "qwen3_moe", case.of_matrices(), case.section).packed
    tensors = load_file(folder / "model.safetensors")
    name = f"{own}.2.up_proj.weight"
    tensors[f"{name}_zero_point"] = torch.zeros_like(tensors[f"{name}_scale"], dtype=torch.int8)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    _refused(folder, f"{own}.gate_up_proj in several ways")
    for suffix in ("", "_scale", "_zero_point"):
        del tensors[name + suffix]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    _refused(folder, f"parts of {own}.gate_up_proj do not fit each other")


@pytest.mark.parametrize("cut", [4, 100, -50])
def test_a_truncated_file_is_named_by_plan_and_loader(cut: int, tmp_path: Path) -> None:
    case = FORMATS["AWQ"]
    folder = write_pair(tmp_path, "llama", case.of_matrices(), case.section).packed
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:cut])
    _refused(folder, str(file))
    if cut > 0:  # plans read headers alone
        with pytest.raises(ModelError, match=r"model\.safetensors cannot be read as safetensors"):
            read_model(str(folder))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    case = FORMATS["AWQ"]
    folder = write_pair(tmp_path, "llama", case.of_matrices(), case.section).packed
    names = load_file(folder / "model.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, "model.safetensors") | {"x": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    _refused(folder, "lacks 1 of 2 files of weights, model-2.safetensors first")


def test_inputs_with_scales_of_their_own_are_refused(tmp_path: Path) -> None:
    """ModelOpt's AWQ, under another name."""
    case = FORMATS["NVFP4, ModelOpt"]
    folder = write_pair(tmp_path, "llama", case.of_matrices(), case.section).packed
    tensors = load_file(folder / "model.safetensors")
    tensors[f"{NAME}.pre_quant_scale"] = torch.ones(64)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    _refused(folder, f"{NAME}.pre_quant_scale scales the inputs")


def _refused(folder: Path, named: str) -> None:
    with pytest.raises(ModelError) as refusal:
        load(folder, torch.float32)
    assert named in str(refusal.value)
    assert "\n" not in str(refusal.value)
