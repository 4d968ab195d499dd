"""Products of packed weights on a CPU: Quire's own (`tiles.py`), or torch's product with weights of 4 bits where the
library in C was not compiled.

    weight = (code − 8) · scale + zero     groups of 32, 64, 128 or 256 inputs have a scale and a zero, in bf16
    int4    one plane of codes, sint4 too
    int8    two planes, of the high and of the low nibbles: 16 · scale · (high − 8) + scale · low

Tokens are rounded to bf16, each plane's product is summed in fp32 and rounded to bf16. A product takes as long as
reading 5 bits a weight and plane, for any number of tokens it is faster than dequantising, and it allocates nothing but
its result. Groups of 16 are filled up with zeros, and take twice the memory. `models/weight_layout.py` counts it.
Weights that do not fit (other codes, inputs that are not whole groups) are multiplied by the reference
(`packed_linear.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from quire.models.weight_layout import OUTPUTS_AT_A_TIME, has_nibble_products, plane_group, plane_inputs
from quire.native.library import native, why_not
from quire.worker.model.packed_experts import PackedProjection
from quire.worker.model.packed_linear import Packed, PackedLinear, PackedProduct
from quire.worker.model.tiles import Tiles
from quire.worker.weights.packed import Codes, PackedWeight

_LOG = logging.getLogger(__name__)
Product = Callable[[torch.Tensor], torch.Tensor]
PLANES = (Codes.INT4, Codes.SINT4, Codes.INT8)
"""Kinds of codes that planes can hold."""
EXACT_LOGITS, ROWS_AT_A_TIME = 32, 16
"""Logits of each token that a tied head computes exactly, and of how many tokens at a time."""
PACKED_AT_A_TIME = 1024
"""Outputs that are repacked at a time, with 4 bytes for each code: a multiple of every width in which torch packs."""


class Planes(nn.Module):
    """A weight as torch's product reads it."""

    order: torch.Tensor | None

    def __init__(self, packed: PackedWeight) -> None:
        super().__init__()
        self.outputs, self.inputs = packed.shape
        self.half_group = packed.columns if plane_inputs(self.inputs, packed.columns)[0] > self.inputs else 0
        """Of groups that are filled up with zeros, how many inputs are given; 0: all."""
        group = _group(packed)
        assert group is not None, packed.name
        self.group = group
        for number, (codes, scales, zeros) in enumerate(_planes(packed.by_rows())):
            self.register_buffer(f"codes_{number}", _repacked(_filled(codes, self.half_group)), persistent=False)
            self.register_buffer(f"scales_{number}", _per_group(packed, scales, zeros, self.group), persistent=False)
        self.register_buffer("order", packed.order, persistent=False)
        self.has_two = packed.kind is Codes.INT8
        self.has_padding = bool(self.outputs % OUTPUTS_AT_A_TIME)

    def multiply(self, tokens: torch.Tensor) -> torch.Tensor:
        """(token, in) into (token, out), in bf16, or in fp32 where planes are summed."""
        own: Any = self
        rounded = tokens.bfloat16().contiguous()
        if self.order is not None:
            rounded = rounded[:, self.order]
        rounded = _filled(rounded, self.half_group)
        found = torch._weight_int4pack_mm_for_cpu(rounded, own.codes_0, self.group, own.scales_0)
        if self.has_two:
            found = found + torch._weight_int4pack_mm_for_cpu(rounded, own.codes_1, self.group, own.scales_1).float()
        return found[:, : self.outputs] if self.has_padding else found

    def dequantised(self) -> torch.Tensor:
        """(out, in), with the rounding of a product."""
        return self.multiply(torch.eye(self.inputs)).T


class OnPlanes(Packed):
    """A module whose weight lies in planes."""

    bias: nn.Parameter | None
    planes: Planes | Tiles

    @property
    def weight(self) -> torch.Tensor:
        return self.planes.dequantised().to(self.dtype)

    def raw(self, tokens: torch.Tensor) -> torch.Tensor:
        """(token, in) into (token, out), in the data type that costs the least."""
        found = self.planes.multiply(tokens)
        return found if self.bias is None else found + self.bias

    def prepared(self) -> Product:
        """`raw` for dense tokens, with everything looked up."""
        own: Any = self.planes
        if isinstance(own, Tiles):
            return own.multiply if self.bias is None else self.raw
        if own.has_two or own.has_padding or own.half_group or own.order is not None or self.bias is not None:
            return self.raw
        return partial(_multiply_one, codes=own.codes_0, group=own.group, scales=own.scales_0)

    def multiply_tokens(self, tokens: torch.Tensor) -> torch.Tensor:
        """The same for tokens of any shape, in their data type."""
        found = self.raw(tokens.reshape(-1, tokens.shape[-1]))
        return found.to(tokens.dtype).view(*tokens.shape[:-1], self.planes.outputs)


def _multiply_one(tokens: torch.Tensor, codes: torch.Tensor, group: int, scales: torch.Tensor) -> torch.Tensor:
    return torch._weight_int4pack_mm_for_cpu(tokens.bfloat16(), codes, group, scales)


class LinearOnPlanes(OnPlanes, PackedLinear):
    """Replaces a linear layer."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.multiply_tokens(tokens)


class HeadOnPlanes(LinearOnPlanes):
    """Replaces a head that is tied to an embedding, whose packed rows give the greatest logits exactly: bf16 has steps
    of an eighth where logits are greatest, and neighbours would change places."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        flat = tokens.reshape(-1, tokens.shape[-1])
        found = self.raw(flat).float()
        for begin in range(0, len(flat), ROWS_AT_A_TIME):
            self._correct(found[begin : begin + ROWS_AT_A_TIME], flat[begin : begin + ROWS_AT_A_TIME].float())
        return found.to(tokens.dtype).view(*tokens.shape[:-1], self.planes.outputs)

    def _correct(self, logits: torch.Tensor, tokens: torch.Tensor) -> None:
        """Where logits are greatest, (token, out)."""
        best = logits.topk(min(EXACT_LOGITS, self.planes.outputs)).indices
        rows = self.packed.by_rows().mapped(lambda tensor: tensor[best.flatten()]).dequantised()
        exact = torch.bmm(rows.view(*best.shape, -1), tokens[:, :, None])[:, :, 0]
        logits.scatter_(1, best, exact if self.bias is None else exact + self.bias[best])


class ProductOnPlanes(OnPlanes, PackedProduct):
    """Replaces linear layers that are fused into one product."""

    def multiply(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.multiply_tokens(tokens)


class ExpertsOnTiles(OnPlanes, PackedProjection):
    """Replaces a projection of experts."""

    def multiply_experts(self, tokens: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        assert isinstance(self.planes, Tiles)
        return self.planes.multiply_experts(tokens, ends).to(tokens.dtype)


ON_PLANES: dict[type[Packed], type[OnPlanes]] = {
    PackedLinear: LinearOnPlanes, PackedProduct: ProductOnPlanes, PackedProjection: ExpertsOnTiles,
}  # fmt: skip


def lay_out_packed(model: nn.Module) -> int:
    """Puts packed weights of linear layers and experts into tiles or planes, where they fit; returns how many."""
    made: dict[int, Planes | Tiles] = {}
    slow: list[PackedWeight] = []
    found: list[Any] = [one for one in model.modules() if type(one) in ON_PLANES and not _has_kernels(one)]
    for module in found:
        packed: PackedWeight = module.packed
        if not fits(packed):
            slow += [packed] if packed.codes.device.type == "cpu" else []
            continue
        key = packed.codes.data_ptr()  # two heads may share a weight
        planes = made.get(key) or made.setdefault(key, _laid_out(packed))
        for name in module._buffers.keys() & packed.tensors.keys():  # an embedding with the same tensors keeps them
            delattr(module, name)
        module.planes = planes
        is_tied = bool(module._shared) and packed.order is None and isinstance(planes, Planes)
        module.__class__ = HeadOnPlanes if is_tied else ON_PLANES[type(module)]
    if slow:
        _LOG.warning(
            "%d of %d packed weights have no fast product on this CPU and are dequantised for each, such as %s (%s)",
            len(slow), len(found), slow[0].name, slow[0].kind.value,
        )  # fmt: skip
    if any(isinstance(one, Planes) for one in made.values()):
        _LOG.warning("packed weights are multiplied by torch, which is slower than Quire's library in C: %s", why_not())
    return len(made)


def describe_products(model: nn.Module, has_layers: bool) -> tuple[str, ...]:
    """One line if there are packed weights. `has_layers`: whole layers are in C."""
    found = {type(module.planes): module.planes for module in model.modules() if isinstance(module, OnPlanes)}
    if Tiles in found:
        tiles: Any = found[Tiles]
        return (f"packed weights in C with {tiles.native.name}, {'whole layers' if has_layers else 'products alone'}",)
    return (f"packed weights by torch, not in C: {why_not()}",) if found else ()


def _has_kernels(module: Any) -> bool:
    """`use_products` has given it some, as on a GPU."""
    return bool(module.product is not None)


def _laid_out(packed: PackedWeight) -> Planes | Tiles:
    found = native()
    return Planes(packed) if found is None else Tiles(packed, found)


def fits(packed: PackedWeight) -> bool:
    """Tiles take all kinds of codes, and experts whose inputs are in order. Planes are for integers of one layer."""
    is_here = packed.codes.device.type == "cpu" and has_nibble_products() and _group(packed) is not None
    if native() is not None:
        is_float = packed.kind in (Codes.FP4, Codes.FP8)
        return (
            is_here
            and (len(packed.shape) == 2 or packed.order is None)
            and not (is_float and packed.minimums is not None)
        )
    return is_here and packed.kind in PLANES and packed.factors is None and len(packed.shape) == 2


def _group(packed: PackedWeight) -> int | None:
    return plane_group(packed.shape[-1], packed.columns)


def _planes(packed: PackedWeight) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Codes from 0 to 15, (out, in), scales and zeros, (out, group), of each plane."""
    scales = packed.scales.float()
    minimums = torch.zeros_like(scales) if packed.minimums is None else packed.minimums.float()
    if packed.kind is not Codes.INT8:
        nibbles = torch.stack((packed.codes & 15, packed.codes >> 4), dim=-1).flatten(-2)
        yield nibbles, scales, minimums if packed.kind is Codes.SINT4 else minimums + 8 * scales
        return
    codes = packed.codes.view(torch.uint8) ^ 128
    yield codes >> 4, 16 * scales, torch.zeros_like(scales)
    yield codes & 15, scales, minimums + 8 * scales


def _filled(numbers: torch.Tensor, half: int) -> torch.Tensor:
    """(…, in), with as many zeros after each half of a group."""
    if not half:
        return numbers
    *leading, inputs = numbers.shape
    return functional.pad(numbers.reshape(*leading, inputs // half, half), (0, half)).flatten(-2)


def _repacked(codes: torch.Tensor) -> torch.Tensor:
    """(out, in/2), in torch's own order; outputs are filled up with zeros."""
    filled = functional.pad(codes, (0, 0, 0, -len(codes) % OUTPUTS_AT_A_TIME))
    begins = range(0, len(filled), PACKED_AT_A_TIME)
    parts = [filled[begin : begin + PACKED_AT_A_TIME].int() for begin in begins]
    return torch.cat([torch._convert_weight_to_int4pack_for_cpu(part, 1) for part in parts])


def _per_group(packed: PackedWeight, scales: torch.Tensor, zeros: torch.Tensor, group: int) -> torch.Tensor:
    """(group, out, 2)"""
    both = torch.stack((scales, zeros), dim=-1).bfloat16().transpose(0, 1)
    inputs, columns = plane_inputs(packed.shape[-1], packed.columns)
    spread = both.repeat_interleave(columns // group, dim=0)[: inputs // group]
    return functional.pad(spread, (0, 0, 0, -spread.shape[1] % OUTPUTS_AT_A_TIME)).contiguous()
