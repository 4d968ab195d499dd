"""Results that do not depend on the batch (`--deterministic`): which models can have them, and what they replace.

products     from cuBLAS, which chooses by the number of tokens     to `kernels.product`, which sums in one order
attention    cut so that all processors work                       cut by what a query sees alone
norms        by torch, which chooses by the number of tokens       compiled once for any number
"""

from __future__ import annotations

import torch
from torch import nn

from quire.core.errors import ModelError
from quire.plan.plan import StagePlan
from quire.worker.kernels.product import product
from quire.worker.model.compilation import holds_layers
from quire.worker.model.fused import FusedPart, FusedProduct
from quire.worker.model.packed_linear import Packed

KINDS = frozenset({"full", "window", "chunked"})
PRODUCTS = (nn.Linear, FusedProduct, FusedPart)
KNOWN_OUTSIDE_LAYERS = (nn.Linear, nn.Embedding, nn.Dropout)
"""Parts outside the layers that sum nothing, or sum as products here do."""


class InvariantLinear(nn.Linear):
    """Replaces a linear layer. One class for all, so that equal layers share what is compiled."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = product(tokens, self.weight, self.bias)
        return found


def require_invariant(model: nn.Module, stage: StagePlan) -> None:
    """Refuses models with sums whose order may depend on the batch."""
    others = sorted({plan.kind.name for plan in stage.kinds if plan.kind.kind not in KINDS})
    if others:
        _refuse(f"layers of kind {', '.join(others)} are")
    for name, module in model.named_modules():
        if isinstance(module, Packed):
            _refuse(f"{name}, whose weight is packed, is")
        if type(module) in PRODUCTS or isinstance(module, nn.Embedding):
            continue
        if any(own.dim() > 1 for own in module.parameters(recurse=False)):
            _refuse(f"{name} ({type(module).__name__}) is")
    others = _unknown_outside_layers(model)
    if others:
        _refuse(f"what {', '.join(others)} of {type(model).__name__} are for is")


def _unknown_outside_layers(model: nn.Module) -> list[str]:
    """Unknown parts outside the layers: what the model computes with them is not compiled."""
    return [
        name
        for parent in model.modules()
        if any(holds_layers(child) for child in parent.children())
        for name, child in parent.named_children()
        if not (holds_layers(child) or isinstance(child, KNOWN_OUTSIDE_LAYERS) or _is_norm_or_table(child))
    ]


def _is_norm_or_table(module: nn.Module) -> bool:
    """Norms outside the layers are compiled too; embeddings and rotary tables, one or several, sum nothing."""
    tables = list(module.children()) or [module]
    return "Norm" in type(module).__name__ or all(type(table).__name__.endswith("Embedding") for table in tables)


def _refuse(what: str) -> None:
    raise ModelError(
        f"{what} not computed in an order that leaves the batch out: --deterministic takes models of full, window and "
        "chunked attention with plain linear layers; leave it out for this one"
    )


def make_invariant(model: nn.Module) -> int:
    """Replaces products; returns how many."""
    modules = [module for module in model.modules() if type(module) in (nn.Linear, FusedProduct)]
    for module in modules:
        if isinstance(module, FusedProduct):
            module.product = product
        else:
            module.__class__ = InvariantLinear
    return len(modules)
