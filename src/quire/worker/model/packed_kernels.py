"""Packed weights on a GPU: `kernels/packed.py` in place of the reference products."""

from __future__ import annotations

import torch

from quire.worker.kernels.experts import Product
from quire.worker.kernels.packed import KINDS, SCALES, product
from quire.worker.weights.packed import Codes, PackedWeight


def packed_product(tokens: torch.Tensor, packed: PackedWeight, bias: torch.Tensor | None) -> torch.Tensor:
    """(…, in) times (out, in): (…, out). In place of `packed_linear.multiply`."""
    tokens = tokens if packed.order is None else tokens[..., packed.order]
    found: torch.Tensor = product(tokens, _tensors(packed), _facts(packed), None)
    return found if bias is None else found + bias


def packed_grouped(tokens: torch.Tensor, packed: PackedWeight, ends: torch.Tensor) -> torch.Tensor:
    """(pair, in) times (expert, out, in): (pair, out). In place of `packed_experts.multiply_all`; `ends`: where each
    expert's pairs end."""
    if packed.order is not None:
        expert = torch.searchsorted(ends, torch.arange(len(tokens), device=tokens.device), right=True)
        tokens = torch.gather(tokens, 1, packed.order[expert].long())
    found: torch.Tensor = product(tokens, _tensors(packed), _facts(packed), ends)
    return found


def product_of(packed: PackedWeight) -> Product:
    """A weight (out, in) or experts' (expert, out, in), as kernels that dequantise tiles read it."""
    codes, *sides = _tensors(packed)
    kind, rows, columns, *has = _facts(packed)
    scales = [one.view(torch.uint8) if one.dtype in SCALES else one for one in sides]
    facts = (kind, SCALES.get(packed.scales.dtype, 0), rows, columns, *has, packed.shape[-1])
    return Product(codes, sides=(scales[0], scales[1], scales[2]), facts=facts)


def _tensors(packed: PackedWeight) -> list[torch.Tensor]:
    """Codes, scales, minimums and factors as the kernel reads them; scales in place of those that are absent."""
    octets = torch.uint8 if packed.kind is Codes.FP8 else packed.codes.dtype
    scales = packed.scales.contiguous()
    sides = [scales if own is None else own.contiguous() for own in (packed.minimums, packed.factors)]
    return [packed.codes.view(octets).contiguous(), scales, *sides]


def _facts(packed: PackedWeight) -> list[int]:
    """The kind of codes, the block of a scale, and whether there are minimums and factors."""
    columns = packed.columns or packed.shape[-1]
    return [
        KINDS.index(packed.kind.value),
        packed.rows,
        columns,
        packed.minimums is not None,
        packed.factors is not None,
    ]
