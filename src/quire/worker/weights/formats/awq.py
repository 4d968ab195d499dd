"""AWQ in the layout `gemm`.

X.qweight   I32  (in, out/8)       8 outputs in a word, lowest bits first: 0 2 4 6 1 3 5 7
X.qzeros    I32  (group, out/8)    zero points, the same way
X.scales    F16  (group, out)
"""

from __future__ import annotations

from functools import partial

import torch

from quire.core.errors import ModelError
from quire.worker.weights.formats.gptq import grouped
from quire.worker.weights.formats.nibbles import unpacked
from quire.worker.weights.formats.stored import Readers, Stored
from quire.worker.weights.packed import PackedWeight

PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where each of 8 outputs lies in its word."""


def find(stored: Stored) -> Readers:
    alone = [name for name in stored.ending(".scales") if f"{name}.qweight" not in stored]
    if alone:  # of an activation function, by which its results would have to be divided
        raise ModelError(f"{stored.where(alone[0] + '.scales')} belongs to no weight, which is not read")
    return {f"{name}.weight": partial(_read, stored, name) for name in stored.ending(".qweight")}


def _read(stored: Stored, name: str) -> PackedWeight:
    where, scales = stored.where(f"{name}.qweight"), stored.tensor(f"{name}.scales")
    codes, zeros = (_in_order(where, stored.tensor(f"{name}.{sort}")) for sort in ("qweight", "qzeros"))
    inputs, groups = len(codes), len(scales)
    if not groups or inputs % groups:
        raise ModelError(f"{where} has {groups} groups of scales for {inputs} inputs: is the checkpoint whole?")
    return grouped(where, (codes.T, 4), scales.T, zeros.T, columns=inputs // groups)


def _in_order(where: str, words: torch.Tensor) -> torch.Tensor:
    if words.dtype is not torch.int32 or words.dim() != 2:
        raise ModelError(f"{where} has shape {tuple(words.shape)} in {words.dtype}: AWQ has words of int32")
    return unpacked(words, 4).view(len(words), -1, 8)[..., PLACES].flatten(-2)
