"""Weights in 8-bit floats with scales: a number for each tensor, output or block.

parameter          F8_E4M3   (…, out, in)
parameter_scale    or parameter_scale_inv, by which codes are multiplied, whatever the name says
"""

from __future__ import annotations

from functools import partial

import torch

from quire.core.errors import ModelError
from quire.models.quantisation import FP8_BLOCK, Section, block_of
from quire.worker.weights.formats.stored import Readers, Stored
from quire.worker.weights.packed import Codes, PackedWeight

SCALES = ("_scale_inv", "_scale")


def find(stored: Stored, section: Section) -> Readers:
    """Also the 8-bit integers of compressed-tensors, which have their scales under the same name."""
    kinds = {"F8_E4M3": Codes.FP8, "I8": Codes.INT8}
    names = [
        name for name in stored.names if stored.dtype(name) in kinds and not name.endswith((*SCALES, "_zero_point"))
    ]
    return {name: partial(_read, stored, name, kinds[stored.dtype(name)], block_of(section)) for name in names}


def _read(stored: Stored, name: str, kind: Codes, block: tuple[int, int] | None) -> PackedWeight:
    where = stored.where(name)
    found = next((name + suffix for suffix in SCALES if name + suffix in stored), None)
    if found is None:
        raise ModelError(f"{where} is in {stored.dtype(name)} and has no scale: is the checkpoint whole?")
    codes, scales, zeros = stored.tensor(name), stored.tensor(found), stored.optional(f"{name}_zero_point")
    if codes.dim() < 2 or (zeros is not None and zeros.shape != scales.shape):
        raise ModelError(f"{where} has shape {tuple(codes.shape)}, scales {tuple(scales.shape)}: is the file whole?")
    minimums = None if zeros is None else -zeros.float() * scales.float()
    *experts, outputs, inputs = codes.shape
    if tuple(scales.shape) in _shapes_of_one(experts, outputs):
        each, added = (None if one is None else _of_rows(one, codes) for one in (scales, minimums))
        assert each is not None
        return PackedWeight(where, kind, codes, each, added)
    is_grouped = block is None and scales.dim() == codes.dim() and scales.shape[-2] == outputs
    if is_grouped and scales.shape[-1] and inputs % scales.shape[-1] == 0:
        return PackedWeight(where, kind, codes, scales, minimums, columns=inputs // scales.shape[-1])
    rows, columns = block or FP8_BLOCK
    return PackedWeight(where, kind, codes, scales, minimums, rows=rows, columns=columns)


def _shapes_of_one(experts: list[int], outputs: int) -> set[tuple[int, ...]]:
    """Of scales with one number for each output, or for all."""
    lead = tuple(experts)
    return {(), (1,), (1, 1), lead, (*lead, 1), (*lead, 1, 1), (*lead, outputs), (*lead, outputs, 1)}


def _of_rows(scales: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """A number for each output."""
    if scales.numel() == 1:
        return scales.reshape(1, 1).expand(*codes.shape[:-1], 1).contiguous()
    return scales.reshape(*codes.shape[:-2], -1, 1).expand(*codes.shape[:-1], 1).contiguous()
