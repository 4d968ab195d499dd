"""Weights in 4-bit floats: MXFP4 (a power of two for each 32 codes) and NVFP4 (an 8-bit float for each 16).

    gpt-oss              P_blocks   U8  (expert, out, in/32, 16)    P_scales   U8, exponents + 127
    compressed-tensors   P_packed   U8  (out, in/2)                 P_scale    U8, or F8_E4M3 ÷ P_global_scale
    ModelOpt             P          U8  (out, in/2)                 P_scale    F8_E4M3 × P_scale_2

Low nibbles come first everywhere.
"""

from __future__ import annotations

from functools import partial

import torch

from quire.core.errors import ModelError
from quire.worker.weights.formats.stored import Readers, Stored
from quire.worker.weights.packed import Codes, PackedWeight

MX_COLUMNS, NV_COLUMNS = 32, 16


def find_blocks(stored: Stored) -> Readers:
    """gpt-oss."""
    return {name: partial(_read_blocks, stored, name) for name in stored.ending("_blocks")}


def find(stored: Stored) -> Readers:
    """compressed-tensors and ModelOpt."""
    packed = [name for name in stored.ending("_packed") if stored.dtype(f"{name}_packed") == "U8"]
    scaled = [name for name in stored.names if stored.dtype(name) == "U8" and f"{name}_scale" in stored]
    stored_as = {name: f"{name}_packed" for name in packed} | {name: name for name in scaled}
    return {name: partial(_read, stored, name, own) for name, own in stored_as.items()}


def _read_blocks(stored: Stored, name: str) -> PackedWeight:
    where = stored.where(f"{name}_blocks")
    blocks, scales = stored.tensor(f"{name}_blocks"), stored.tensor(f"{name}_scales")
    if blocks.dim() < 3 or blocks.shape[-1] != MX_COLUMNS // 2 or blocks.dtype is not torch.uint8:
        raise ModelError(f"{where} has shape {tuple(blocks.shape)} in {blocks.dtype}, blocks end in 16 of uint8")
    return PackedWeight(where, Codes.FP4, blocks.flatten(-2), _exponents(where, scales), columns=MX_COLUMNS)


def _read(stored: Stored, name: str, stored_as: str) -> PackedWeight:
    where, codes, scales = stored.where(stored_as), stored.tensor(stored_as), stored.tensor(f"{name}_scale")
    if scales.dtype is torch.uint8:
        return PackedWeight(where, Codes.FP4, codes, _exponents(where, scales), columns=MX_COLUMNS)
    whole = stored.optional(f"{name}_global_scale")
    factor = stored.tensor(f"{name}_scale_2") if whole is None else 1 / whole.float()
    if factor.numel() != 1 or scales.dtype is not torch.float8_e4m3fn:
        raise ModelError(f"{where} has scales in {scales.dtype} and {factor.numel()} factors: NVFP4 has e4m3 and 1")
    factors = factor.float().reshape(1, 1).expand(codes.shape[-2], 1).contiguous()
    return PackedWeight(where, Codes.FP4, codes, scales, factors=factors, columns=NV_COLUMNS)


def _exponents(where: str, scales: torch.Tensor) -> torch.Tensor:
    if scales.dtype is not torch.uint8:
        raise ModelError(f"{where} has scales in {scales.dtype}: MXFP4 has exponents in uint8")
    return scales.view(torch.float8_e8m0fnu)
