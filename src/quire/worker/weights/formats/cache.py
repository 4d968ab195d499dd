"""Scales of keys and values that a checkpoint was calibrated with, for a KV cache in 8-bit floats.

    layers.N.self_attn.k_scale                v_scale                compressed-tensors
    layers.N.self_attn.k_proj.k_scale         v_proj.v_scale         ModelOpt
    layers.N.self_attn.k_proj.output_scale    v_proj.output_scale    older compressed-tensors
    layers.N.self_attn.kv_scale                                      of both: AutoFP8

One number, or one for each head. A stored number times its scale is the value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from quire.models.quantisation import Section, section_in
from quire.worker.weights.formats.stored import Stored, open_stored

NAME = re.compile(
    r"\blayers\.(?P<layer>\d+)\.(?:self_attn|attention|attn)\."
    r"(?:(?P<of>k|v|kv)_scale|(?:[kv]|qkv)_proj\.(?P<by>[kv])_scale|(?P<output>[kv])_proj\.output_scale)$"
)
PARTS = {"k": ("key",), "v": ("value",), "kv": ("key", "value")}


@dataclass(frozen=True, slots=True, eq=False)
class CacheScale:
    """Of the keys or the values of a layer."""

    where: str
    """For messages: file and tensor."""
    numbers: torch.Tensor
    """(1,) or (head,)"""


CacheScales = Mapping[int, Mapping[str, CacheScale]]
"""By layer, by part: `key`, `value`."""


def read_cache_scales(folder: Path) -> CacheScales:
    """Those of a checkpoint folder that 8-bit floats can take. Scales that no calibration has set (0 or less) are left
    out."""
    section = section_in(folder)
    if section is None or not _is_of_floats(section):
        return {}
    found: dict[int, dict[str, CacheScale]] = {}
    with open_stored(folder) as stored:
        for name in stored.names:
            match = NAME.search(name)
            scale = None if match is None or "vision" in name else _read(stored, name)
            if match is not None and scale is not None:
                parts = PARTS[match["of"] or match["by"] or match["output"]]
                found.setdefault(int(match["layer"]), {}).update(dict.fromkeys(parts, scale))
    return found


def _read(stored: Stored, name: str) -> CacheScale | None:
    numbers = stored.tensor(name).float().reshape(-1).clone()
    return CacheScale(stored.where(name), numbers) if bool((numbers > 0).all() & numbers.isfinite().all()) else None


def _is_of_floats(section: Section) -> bool:
    """Scales for integers, or for 4 bits, mean something else."""
    inner = section.get("quantization")
    nested = inner if isinstance(inner, Mapping) else {}
    algorithm = section.get("kv_cache_quant_algo") or nested.get("kv_cache_quant_algo")
    scheme = section.get("kv_cache_scheme")
    if isinstance(scheme, Mapping):
        return (scheme.get("type", "float"), scheme.get("num_bits", 8)) == ("float", 8)
    return algorithm is None or str(algorithm).upper() == "FP8"
