"""`pack-quantized` of compressed-tensors: codes of 4 or 8 bits, stored unsigned.

X.weight_packed       I32  (…, out, in·bits/32)      lowest bits first
X.weight_scale        16-bit or fp32 (…, out, group)
X.weight_zero_point   I32  (…, out·bits/32, group)   packed along the outputs; only where it is asymmetric
X.weight_shape        I64  (2,)
X.weight_g_idx        I32  (in,)                     the group of each input, or −1 for all: in order
"""

from __future__ import annotations

from functools import partial

import torch

from quire.core.errors import ModelError
from quire.worker.weights.formats.nibbles import order_of, packed, signed, unpacked
from quire.worker.weights.formats.stored import Readers, Stored
from quire.worker.weights.packed import Codes, PackedWeight


def find(stored: Stored) -> Readers:
    names = [name for name in stored.ending("_packed") if stored.dtype(f"{name}_packed") == "I32"]
    return {name: partial(_read, stored, name) for name in names}


def _read(stored: Stored, name: str) -> PackedWeight:
    where, words = stored.where(f"{name}_packed"), stored.tensor(f"{name}_packed")
    scales, zeros = stored.tensor(f"{name}_scale"), stored.optional(f"{name}_zero_point")
    inputs, bits = _inputs(where, words, stored.tensor(f"{name}_shape"))
    scales = scales if scales.dim() == words.dim() else scales.reshape(-1, 1).expand(words.shape[-2], 1).contiguous()
    if not scales.shape[-1] or inputs % scales.shape[-1]:
        raise ModelError(f"{where} has {scales.shape[-1]} groups of scales for {inputs} inputs: is the file whole?")
    columns = inputs // scales.shape[-1]
    codes, order = unpacked(words, bits)[..., :inputs], _order(stored, f"{name}_g_idx", scales.shape[-1], columns)
    codes = codes if order is None else codes[..., order]
    minimums = None if zeros is None else _minimums(where, zeros, bits, scales)
    kind, made = (Codes.SINT4, packed(codes)) if bits == 4 else (Codes.INT8, signed(codes))
    return PackedWeight(where, kind, made.contiguous(), scales, minimums, order=order, columns=columns)


def _inputs(where: str, words: torch.Tensor, shape: torch.Tensor) -> tuple[int, int]:
    """How many, and the bits of each."""
    inputs, stored = int(shape[-1]), 32 * words.shape[-1]
    for bits in (4, 8):
        if 0 <= stored - bits * inputs < 32:
            return inputs, bits
    raise ModelError(f"{where} has {stored} bits for {inputs} inputs: codes of 4 and 8 bits are read")


def _order(stored: Stored, name: str, groups: int, columns: int) -> torch.Tensor | None:
    own = stored.optional(name)
    return None if own is None or bool((own == -1).all()) else order_of(stored.where(name), own, groups, columns)


def _minimums(where: str, zeros: torch.Tensor, bits: int, scales: torch.Tensor) -> torch.Tensor:
    """Zero points are packed along the outputs, like codes with the middle added; codes here are less the middle."""
    if zeros.dtype is torch.int32:
        zeros = unpacked(zeros.mT, bits).mT[..., : scales.shape[-2], :].int() - (1 << (bits - 1))
    if zeros.shape != scales.shape:
        raise ModelError(f"{where} has zero points of shape {tuple(zeros.shape)} for scales of {tuple(scales.shape)}")
    return -zeros.float() * scales.float()
