"""Results that do not depend on the batch (`--deterministic`): what a model must be made of, and what is replaced.

products     from cuBLAS, which chooses by the number of tokens     to `kernels.product`, which adds up in one order
attention    cut so that all processors work                       cut by what a query sees, and nothing else
norms        by torch, which chooses by the number of tokens       compiled once for any number
"""

from __future__ import annotations

import torch
from torch import nn

from quire.core.errors import ModelError
from quire.plan.plan import StagePlan
from quire.worker.fused import Part, Share
from quire.worker.kernels.product import product
from quire.worker.opaque import holds_layers

KINDS = frozenset({"full", "window", "chunked"})
PRODUCTS = (nn.Linear, Share, Part)
BESIDE_LAYERS = (nn.Linear, nn.Embedding, nn.Dropout)
"""Parts that add up nothing, or as products here do."""


class Invariant(nn.Linear):
    """Stands in for a linear layer: layers that are alike share what is compiled, so it is one class for all."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = product(tokens, self.weight, self.bias)
        return found


def require_invariant(model: nn.Module, stage: StagePlan) -> None:
    """Refuses what is computed with others in an order that nobody here controls."""
    others = sorted({plan.kind.name for plan in stage.kinds if plan.kind.kind not in KINDS})
    if others:
        _refuse(f"layers of kind {', '.join(others)} are")
    for name, module in model.named_modules():
        if type(module) in PRODUCTS or isinstance(module, nn.Embedding):
            continue
        if any(own.dim() > 1 for own in module.parameters(recurse=False)):
            _refuse(f"{name} ({type(module).__name__}) is")
    others = _beside_layers(model)
    if others:
        _refuse(f"what {', '.join(others)} of {type(model).__name__} are for is")


def _beside_layers(model: nn.Module) -> list[str]:
    """Parts that nobody knows from other models: what is computed with them, outside the layers, is not compiled."""
    return [
        name
        for parent in model.modules()
        if any(holds_layers(child) for child in parent.children())
        for name, child in parent.named_children()
        if not (holds_layers(child) or isinstance(child, BESIDE_LAYERS) or _is_norm_or_table(child))
    ]


def _is_norm_or_table(module: nn.Module) -> bool:
    """Norms beside layers are compiled as layers are; embeddings and rotary tables, one or some, add up nothing."""
    tables = list(module.children()) or [module]
    return "Norm" in type(module).__name__ or all(type(table).__name__.endswith("Embedding") for table in tables)


def _refuse(what: str) -> None:
    raise ModelError(
        f"{what} not computed in an order that leaves the batch out: --deterministic takes models of full, window and "
        "chunked attention with plain linear layers; leave it out for this one"
    )


def make_invariant(model: nn.Module) -> int:
    """How many products were replaced."""
    modules = [module for module in model.modules() if type(module) in (nn.Linear, Share)]
    for module in modules:
        if isinstance(module, Share):
            module.product = product
        else:
            module.__class__ = Invariant
    return len(modules)
