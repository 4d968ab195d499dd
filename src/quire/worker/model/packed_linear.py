"""Modules whose weight stays packed in memory: linear layers, embeddings, and the common weight of fused layers.

    tokens ──▶ product with one part of the outputs after another, each dequantised for it ──▶ outputs

This is the reference: exact on every device, with no more than a part's weight dequantised at a time. Faster layouts
are made from `Packed.packed`, and kernels take its place (`use_products`). Nothing here waits for a device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import nn
from torch.nn import functional

from quire.worker.weights.packed import PackedWeight, stacked

Product = Callable[[torch.Tensor, PackedWeight, torch.Tensor | None], torch.Tensor]
"""Of tokens, a weight and a bias."""
Grouped = Callable[[torch.Tensor, PackedWeight, torch.Tensor], torch.Tensor]
"""Of pairs of token and expert, the experts' weights, and where each expert's pairs end."""
PART_NUMBERS = 1 << 24
"""Numbers that are dequantised at a time, in fp32 first."""


class Packed(nn.Module):
    """Holds a packed weight. Its tensors are buffers, so that they move to a device with the module."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().__init__()
        self.shape, self.dtype = shape, dtype
        self.product: Product | None = None
        self.grouped: Grouped | None = None
        """Default: the reference."""
        self._like: PackedWeight | None = None
        self._shared: tuple[Packed, ...] = ()
        """Whose weight this is too. In a tuple, so that it is no child: buffers of both would be moved apart."""

    def share(self, other: Packed) -> None:
        """Has the other's weight, as a tied head has the embedding's."""
        self._shared = (other,)

    def hold(self, packed: PackedWeight) -> None:
        assert packed.shape == self.shape, (packed.name, packed.shape, self.shape)
        for name, tensor in packed.tensors.items():
            self.register_buffer(name, tensor, persistent=False)
        self._like = packed.mapped(lambda tensor: tensor.to("meta"))

    @property
    def packed(self) -> PackedWeight:
        if self._shared:
            return self._shared[0].packed
        assert self._like is not None, "weights are loaded first"
        own = {name: getattr(self, name) for name in self._like.tensors}
        like = self._like
        return PackedWeight(**own, name=like.name, kind=like.kind, rows=like.rows, columns=like.columns)

    @property
    def weight(self) -> torch.Tensor:
        """Dequantised at each call: for models that read the weight of a layer themselves."""
        return self.packed.dequantised().to(self.dtype)


class PackedLinear(Packed):
    """Replaces a linear layer."""

    bias: nn.Parameter | None

    def __init__(self, outputs: int, inputs: int, dtype: torch.dtype, bias: nn.Parameter | None = None) -> None:
        super().__init__((outputs, inputs), dtype)
        self.in_features, self.out_features = inputs, outputs
        self.bias = bias

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return (self.product or multiply)(tokens, self.packed, self.bias)


class PackedEmbedding(Packed):
    """Replaces an embedding: the rows that are looked up are dequantised."""

    def __init__(self, count: int, width: int, dtype: torch.dtype, scale: float | None = None) -> None:
        super().__init__((count, width), dtype)
        self.num_embeddings, self.embedding_dim = count, width
        self.scale = None if scale is None else torch.tensor(scale, dtype=dtype, device="cpu").item()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        packed, rows = self.packed.by_rows(), ids.flatten()
        assert packed.order is None, packed.name
        found = packed.mapped(lambda tensor: tensor[rows]).dequantised()
        found = found.to(self.dtype).view(*ids.shape, -1)
        return found if self.scale is None else found * self.scale


class PackedProduct(Packed):
    """The common weight of linear layers that read the same tokens (`fused.py`)."""

    bias: nn.Parameter | None

    def __init__(self, linears: Sequence[PackedLinear], packed: PackedWeight) -> None:
        super().__init__(packed.shape, linears[0].dtype)
        self.hold(packed)
        self.out_features, self.in_features = packed.shape
        biases: list[torch.Tensor] = [linear.bias for linear in linears if linear.bias is not None]
        self.bias = nn.Parameter(torch.cat(biases), requires_grad=False) if biases else None
        self.tokens: torch.Tensor | None = None
        self.found: torch.Tensor | None = None

    def multiply(self, tokens: torch.Tensor) -> torch.Tensor:
        return (self.product or multiply)(tokens, self.packed, self.bias)


def multiply(tokens: torch.Tensor, packed: PackedWeight, bias: torch.Tensor | None) -> torch.Tensor:
    """(…, in) by (out, in) into (…, out), in the tokens' data type."""
    if packed.order is not None:
        tokens, packed = tokens[..., packed.order], replace(packed, order=None)
    outputs, inputs = packed.shape
    most = max(1, PART_NUMBERS // inputs // packed.rows) * packed.rows
    parts = [packed.part(begin, min(outputs, begin + most)) for begin in range(0, outputs, most)]
    found = [functional.linear(tokens, part.dequantised().to(tokens.dtype)) for part in parts]
    joined = found[0] if len(found) == 1 else torch.cat(found, dim=-1)
    return joined if bias is None else joined + bias


def use_products(model: nn.Module, product: Product, grouped: Grouped) -> int:
    """Lets kernels multiply; returns how many weights."""
    held = [module for module in model.modules() if isinstance(module, Packed)]
    for module in held:
        module.product, module.grouped = product, grouped
    return len(held)


def joined(linears: Sequence[PackedLinear]) -> PackedProduct | None:
    """One product for several layers; None: their weights have different layouts, or only some have a bias."""
    if len({linear.bias is None for linear in linears}) > 1:
        return None
    packed = stacked([linear.packed for linear in linears])
    return None if packed is None else PackedProduct(linears, packed)
