"""Quire's own form (`packed.py`): what a GGUF file or `--weights` becomes."""

from __future__ import annotations

from functools import partial

from quire.core.errors import ModelError
from quire.worker.weights.formats.stored import Readers, Stored
from quire.worker.weights.packed import Codes, PackedWeight


def find(stored: Stored) -> Readers:
    kinds = {kind: stored.ending(f".{kind.value}") for kind in Codes}
    return {name: partial(_read, stored, name, kind) for kind, names in kinds.items() for name in names}


def _read(stored: Stored, name: str, kind: Codes) -> PackedWeight:
    where = stored.where(f"{name}.{kind.value}")
    codes, scales = stored.tensor(f"{name}.{kind.value}"), stored.tensor(f"{name}.scales")
    inputs = codes.shape[-1] * (2 if kind.has_nibbles else 1)
    if scales.dim() != codes.dim() or not scales.shape[-1] or inputs % scales.shape[-1]:
        raise ModelError(
            f"{where} has scales of shape {tuple(scales.shape)}, which do not divide {inputs} inputs evenly"
        )
    packed = PackedWeight(where, kind, codes, scales, columns=inputs // scales.shape[-1])
    others = {sort: stored.optional(f"{name}.{sort}") for sort in ("minimums", "factors", "order")}
    return packed.having({sort: tensor for sort, tensor in others.items() if tensor is not None})
