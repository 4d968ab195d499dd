"""Which formats of quantised checkpoints are read: one table for plans and for the loader. Needs no torch.

`quantization_config` names a method. A few have versions with another layout of the same tensors, which are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import NoReturn

from quire.core.errors import ModelError

Section = Mapping[str, object]


class Format(str, Enum):
    """How a checkpoint's tensors are read."""

    QUIRE = "quire"
    FP8 = "fp8"
    COMPRESSED_TENSORS = "compressed-tensors"
    MODELOPT = "modelopt"
    AWQ = "awq"
    GPTQ = "gptq"
    MXFP4 = "mxfp4"


METHODS = {
    "quire": Format.QUIRE, "fp8": Format.FP8, "finegrained_fp8": Format.FP8, "fbgemm_fp8": Format.FP8,
    "compressed-tensors": Format.COMPRESSED_TENSORS, "modelopt": Format.MODELOPT, "modelopt_fp4": Format.MODELOPT,
    "nvfp4": Format.MODELOPT, "awq": Format.AWQ, "gptq": Format.GPTQ, "mxfp4": Format.MXFP4,
}  # fmt: skip
FP8_BLOCK = (128, 128)
"""Where the configuration names no block."""
READ = "fp8, int8 and int4 of compressed-tensors, ModelOpt (FP8, NVFP4), AWQ, GPTQ and MXFP4"
PACKED_FORMATS = frozenset({
    "dense", "float-quantized", "naive-quantized", "int-quantized", "pack-quantized", "nvfp4-pack-quantized",
    "mxfp4-pack-quantized", "mixed-precision",
})  # fmt: skip
"""Of compressed-tensors."""
ALGORITHMS = frozenset({"FP8", "FP8_PB_WO", "FP8_PER_CHANNEL_PER_TOKEN", "NVFP4", "MIXED_PRECISION"})
"""Of ModelOpt."""


def text_of(config: Mapping[str, object]) -> Mapping[str, object]:
    """The part of a configuration that describes the language model."""
    text = config.get("text_config")
    return text if isinstance(text, Mapping) else config


def section_of(config: Mapping[str, object]) -> Section | None:
    """What a configuration says about quantisation, under any of the names for it."""
    for part in (config, text_of(config)):
        for name in ("quantization_config", "compression_config", "quantization"):
            section = part.get(name)
            if isinstance(section, Mapping):
                return section
            if section is not None:
                raise ModelError(f"{name} is {section!r:.60}: it must be an object of fields")
    return None


def format_of(section: Section) -> Format:
    """Refuses what no reader here reads, in one sentence that plans and the loader share."""
    method = _text(section, "quant_method").lower()
    if not method and _text(section, "quant_algo"):
        method = "modelopt"
    if method == "auto-round":
        method = _auto_round(section)
    found = METHODS.get(method)
    if found is None:
        _refuse(f"by {method}" if method else "by a method that quantization_config.quant_method does not name")
    if found in _CHECKS:
        _CHECKS[found](section)
    return found


def refuse_twice(section: Section, weights: str) -> NoReturn:
    """`--weights` quantises what is not quantised."""
    method = _text(section, "quant_method") or "its own method"
    by = "" if method == "quire" else f" by {method}"  # what a GGUF file or `--weights` became
    raise ModelError(f"the checkpoint is quantised already{by}: leave out --weights {weights}")


def _refuse(how: str) -> NoReturn:
    raise ModelError(f"the checkpoint is quantised {how}, which is not read: {READ} are; give one of these")


def _auto_round(section: Section) -> str:
    packing = _text(section, "packing_format")
    return {"auto_round:auto_gptq": "gptq", "auto_round:auto_awq": "awq"}.get(packing, f"auto-round as {packing}")


def _check_awq(section: Section) -> None:
    version = (_text(section, "version") or "gemm").lower()
    if version != "gemm":
        _refuse(f"by awq in version {version}")
    if section.get("bits", section.get("w_bit", 4)) != 4:
        _refuse(f"by awq with {section.get('bits')} bits")


def _check_gptq(section: Section) -> None:
    layout = (_text(section, "checkpoint_format") or "gptq").lower()
    if layout not in ("gptq", "gptq_v2") or section.get("is_marlin_format") is True:
        _refuse(f"by gptq in the layout {layout if layout not in ('gptq', 'gptq_v2') else 'marlin'}")
    if section.get("bits") not in (4, 8):
        _refuse(f"by gptq with {section.get('bits')} bits")


def _check_compressed(section: Section) -> None:
    named = {_text(section, "format") or "dense"} | {_text(group, "format") for group in groups_of(section)} - {""}
    if others := sorted(named - PACKED_FORMATS):
        _refuse(f"by compressed-tensors as {', '.join(others)}")
    sparsity, transform = section.get("sparsity_config"), section.get("transform_config")
    if isinstance(sparsity, Mapping) and _text(sparsity, "format") not in ("", "dense"):
        _refuse(f"by compressed-tensors with sparsity as {_text(sparsity, 'format')}")
    if isinstance(transform, Mapping) and transform.get("config_groups"):
        _refuse("by compressed-tensors with transforms of activations")


def _check_modelopt(section: Section) -> None:
    nested = section.get("quantization")
    algorithm = _text(nested if isinstance(nested, Mapping) else section, "quant_algo").upper()
    if algorithm and algorithm not in ALGORITHMS:
        _refuse(f"by modelopt as {algorithm}")


def groups_of(section: Section) -> list[Section]:
    """Of compressed-tensors: one for each precision that the checkpoint has."""
    groups = section.get("config_groups")
    return [group for group in groups.values() if isinstance(group, Mapping)] if isinstance(groups, Mapping) else []


def block_of(section: Section) -> tuple[int, int] | None:
    """Outputs and inputs that share a scale of 8-bit floats, if the configuration says so."""
    stated = [section.get("weight_block_size")]
    for group in groups_of(section):
        weights = group.get("weights")
        stated.append(weights.get("block_structure") if isinstance(weights, Mapping) else None)
    pairs = [pair for pair in stated if isinstance(pair, list | tuple) and len(pair) == 2]
    return (int(pairs[0][0]), int(pairs[0][1])) if pairs else None


def _text(section: Section, name: str) -> str:
    value = section.get(name)
    return value if isinstance(value, str) else ""


def section_in(folder: Path) -> Section | None:
    """Of a checkpoint folder: from config.json, or from the file that ModelOpt writes next to it."""
    config = read_json(folder / "config.json")
    found = section_of(config)
    beside = folder / "hf_quant_config.json"
    if found is not None or not beside.is_file():
        return found
    inner = read_json(beside).get("quantization")
    return {"quant_method": "modelopt", **inner} if isinstance(inner, Mapping) else None


def read_json(path: Path) -> Mapping[str, object]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(found, Mapping):
        raise ModelError(f"{path} is not an object of fields")
    return found


_CHECKS = {
    Format.AWQ: _check_awq, Format.GPTQ: _check_gptq, Format.COMPRESSED_TENSORS: _check_compressed,
    Format.MODELOPT: _check_modelopt,
}  # fmt: skip
