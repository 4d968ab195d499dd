"""Linear layers that read the same tokens, as one product: queries, keys and values; the two halves of a gated MLP.

    q_proj ┐            weights stacked                  x · Wᵀ = [ q | k | v ]
    k_proj ├─ share ──▶ the first that is called multiplies, the others take their part of the result
    v_proj ┘

Each still has its own weight, a view of the common one. A layer that is called with other tokens than the one before it
multiplies again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn import functional

from quire.worker.model.packed_linear import PackedLinear, PackedProduct, joined

TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of children that transformers' classes give them."""
GATED = ["act_fn", "down_proj", "gate_proj", "up_proj"]
SILU, GELU = ("SiLU", "SiLUActivation"), ("GELUTanh",)
"""Classes of activations; gelu is the one with tanh."""
Product = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]


Gating = Callable[[torch.Tensor, torch.Tensor, bool], torch.Tensor]
Joining = Callable[[torch.Tensor, bool], torch.Tensor]


class FusedProduct(nn.Module):
    """The common weight of some linear layers, and the latest product."""

    bias: nn.Parameter | None

    def __init__(self, linears: list[nn.Linear]) -> None:
        super().__init__()
        self.weight = _stack([linear.weight for linear in linears])
        self.out_features, self.in_features = self.weight.shape
        self.bias = None if linears[0].bias is None else _stack([linear.bias for linear in linears])
        self.product: Product | None = None
        """Default: torch's."""
        self.tokens: torch.Tensor | None = None
        self.found: torch.Tensor | None = None

    def multiply(self, tokens: torch.Tensor) -> torch.Tensor:
        return (self.product or functional.linear)(tokens, self.weight, self.bias)


class FusedPart(nn.Module):
    """Replaces one of the linear layers."""

    def __init__(self, share: FusedProduct | PackedProduct, begin: int, end: int) -> None:
        super().__init__()
        self.share, self.begin, self.end = share, begin, end
        self.is_last = end == share.out_features
        self.in_features, self.out_features = share.in_features, end - begin

    @property
    def weight(self) -> torch.Tensor:
        return self.share.weight[self.begin : self.end]

    @property
    def bias(self) -> torch.Tensor | None:
        return None if self.share.bias is None else self.share.bias[self.begin : self.end]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        share = self.share
        if share.found is None or share.tokens is not tokens:
            share.tokens, share.found = tokens, share.multiply(tokens)
        part = share.found[..., self.begin : self.end]
        if self.is_last:
            share.tokens = share.found = None
        return part


def _stack(tensors: Sequence[torch.Tensor]) -> nn.Parameter:
    return nn.Parameter(torch.cat([tensor.detach() for tensor in tensors]), requires_grad=False)


def fuse(model: nn.Module) -> int:
    """Fuses linear layers; returns how many products replace several."""
    places = [(module, names) for module in model.modules() for names in TOGETHER if _fit(_named(module, names))]
    return sum(_fuse(module, names) for module, names in places)


def _fuse(module: nn.Module, names: tuple[str, ...]) -> bool:
    """Replaced weights are freed at once: they are never all there twice."""
    linears = _named(module, names)
    packed = [linear for linear in linears if isinstance(linear, PackedLinear)]
    share = joined(packed) if packed else FusedProduct(linears)  # type: ignore[arg-type]
    if share is not None:
        _replace(module, names, share, [linear.out_features for linear in linears])  # type: ignore[union-attr, misc]
    return share is not None


def _named(module: nn.Module, names: tuple[str, ...]) -> list[nn.Module | None]:
    return [getattr(module, name, None) for name in names]


def _fit(linears: list[nn.Module | None]) -> bool:
    if all(isinstance(linear, PackedLinear) for linear in linears):
        return True
    if not all(type(linear) is nn.Linear for linear in linears):
        return False
    sorts = {
        (linear.in_features, linear.bias is None, linear.weight.dtype, linear.weight.device)
        for linear in linears
        if isinstance(linear, nn.Linear)
    }
    return len(sorts) == 1


def _replace(
    module: nn.Module, names: tuple[str, ...], share: FusedProduct | PackedProduct, outputs: list[int]
) -> None:
    begin = 0
    for name, count in zip(names, outputs, strict=True):
        setattr(module, name, FusedPart(share, begin, begin + count))
        begin += count


def gate(model: nn.Module, product: Gating, join: Joining) -> int:
    """Lets gated MLPs compute both halves by `product`, from the tokens, both halves' weight, and whether they are
    joined by gelu; those with packed weights by their own product, then `join`. Returns how many."""
    gates = [module for module in model.modules() if is_gated(module, (*SILU, *GELU))]
    for module in gates:
        is_packed = isinstance(module.gate_proj.share, PackedProduct)  # type: ignore[union-attr]
        module.is_gelu = type(module.act_fn).__name__ in GELU  # type: ignore[assignment]
        module.product = join if is_packed else product  # type: ignore[assignment]
        module.__class__ = GatedPacked if is_packed else Gated
    return len(gates)


class Gated(nn.Module):
    """Replaces an MLP of transformers: silu(gate) × up or gelu(gate) × up, then down. One class for all, so that equal
    layers share what is compiled."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        halves = self.product(tokens, self.gate_proj.share.weight, self.is_gelu)  # type: ignore[operator, union-attr]
        found: torch.Tensor = self.down_proj(halves)  # type: ignore[operator]
        return found


class GatedPacked(nn.Module):
    """The same with packed weights. Without it the activation of a half would lie in memory beside both halves."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        halves = self.gate_proj.share.multiply(tokens)  # type: ignore[operator, union-attr]
        found: torch.Tensor = self.down_proj(self.product(halves, self.is_gelu))  # type: ignore[operator]
        return found


def is_gated(module: nn.Module, activations: Sequence[str] = SILU) -> bool:
    """Whether its forward uses these four attributes and nothing else, and the halves are one weight without a bias.
    `activations`: names of classes."""
    half, code = getattr(module, "gate_proj", None), getattr(type(module).forward, "__code__", None)
    if not isinstance(half, FusedPart) or half.share.bias is not None or code is None or sorted(code.co_names) != GATED:
        return False
    return type(module.act_fn).__name__ in activations
