"""GPTQ, in both versions of its layout.

X.qweight   I32  (in·bits/32, out)       8 or 4 inputs in a word, lowest bits first
X.qzeros    I32  (group, out·bits/32)    zero points; version 1 stores them less 1
X.scales    F16  (group, out)
X.g_idx     I32  (in,)                   the group of each input: with act-order, not in order
"""

from __future__ import annotations

from functools import partial

import torch

from quire.core.errors import ModelError
from quire.models.quantisation import Section
from quire.worker.weights.formats.nibbles import order_of, packed, signed, unpacked
from quire.worker.weights.formats.stored import Readers, Stored
from quire.worker.weights.packed import Codes, PackedWeight


def find(stored: Stored, section: Section) -> Readers:
    return {f"{name}.weight": partial(_read, stored, name, section) for name in stored.ending(".qweight")}


def _read(stored: Stored, name: str, section: Section) -> PackedWeight:
    where, words = stored.where(f"{name}.qweight"), stored.tensor(f"{name}.qweight")
    scales, groups = stored.tensor(f"{name}.scales"), stored.optional(f"{name}.g_idx")
    inputs = _inputs(where, words, groups, section)
    bits, size = 32 * words.shape[0] // inputs, section.get("group_size")
    columns = size if isinstance(size, int) and size > 0 else inputs
    codes, order = unpacked(words.T, bits), None
    if groups is not None:
        order = order_of(stored.where(f"{name}.g_idx"), groups, len(scales), columns)
    codes = codes if order is None else codes[:, order]
    zeros = _zeros(stored, f"{name}.qzeros", bits, section)
    return grouped(where, (codes, bits), scales.T, zeros.T, order=order, columns=columns)


def _inputs(where: str, words: torch.Tensor, groups: torch.Tensor | None, section: Section) -> int:
    bits = section.get("bits")
    inputs = len(groups) if groups is not None else words.shape[0] * 32 // (bits if isinstance(bits, int) else 4)
    if words.dtype is not torch.int32 or words.dim() != 2 or 32 * words.shape[0] not in (4 * inputs, 8 * inputs):
        raise ModelError(
            f"{where} has shape {tuple(words.shape)} in {words.dtype}, which is not 4 or 8 bits of {inputs}"
        )
    return inputs


def _zeros(stored: Stored, name: str, bits: int, section: Section) -> torch.Tensor:
    """(group, out)"""
    zeros = unpacked(stored.tensor(name), bits).int()
    is_less = (section.get("checkpoint_format") or "gptq") != "gptq_v2"
    return (zeros + 1) % (1 << bits) if is_less else zeros


def grouped(
    where: str,
    given: tuple[torch.Tensor, int],
    scales: torch.Tensor,
    zeros: torch.Tensor,
    *,
    columns: int,
    order: torch.Tensor | None = None,
) -> PackedWeight:
    """From unsigned codes (out, in) of some bits, and (out, group) of each. Where all zero points lie in the middle,
    codes are signed and nothing is added."""
    codes, bits = given
    middle, scales = 1 << (bits - 1), scales.contiguous()
    if zeros.shape != scales.shape:
        raise ModelError(f"{where} has zero points of shape {tuple(zeros.shape)} for scales of {tuple(scales.shape)}")
    is_symmetric = bool((zeros == middle).all())
    offset = zeros if bits == 4 else zeros - middle
    minimums = None if is_symmetric else -offset.float() * scales.float()
    stored = packed(codes) if bits == 4 else signed(codes)
    kind = Codes.INT8 if bits == 8 else Codes.SINT4 if is_symmetric else Codes.INT4
    return PackedWeight(where, kind, stored.contiguous(), scales, minimums, order=order, columns=columns)
