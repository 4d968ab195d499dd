"""torch.compile for a model's layers.

Layers are compiled one by one: equal layers share what was compiled, so the start does not take longer with depth. What
the compiler must not look into is reached through operations (`mixers/context.py`).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from transformers.modeling_layers import GradientCheckpointingLayer

OPTIONS: dict[str, Any] = {"combo_kernels": True}
"""Options of the compiler: small independent operations are one launch, such as rotating queries and keys."""


SORTS_OF_LAYERS = 64
"""Of one class, each compiled for itself. Beyond the compiler's limit, which is 8, layers would run eagerly."""


def compile_layers(model: torch.nn.Module, is_invariant: bool = False) -> None:
    """Compiles each layer and the norm after the last one, once for any number of tokens but one: a single token runs
    eagerly (`run_eagerly`) unless decode steps of one row are recorded. `is_invariant`: sums are added in the same
    order in every process."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, SORTS_OF_LAYERS)
    options = OPTIONS | (_fixed_choices() if is_invariant else {})
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    for module in (*layers, *_last_norms(model)):
        module.forward = torch.compile(module.forward, dynamic=True, options=options)


def _fixed_choices() -> dict[str, Any]:
    """Options that keep the compiler from trying out another order of a sum."""
    from torch._inductor import config

    return {name: True for name in ("deterministic", "batch_invariant") if hasattr(config, name)}


def _last_norms(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Norms with the same parent as a list of layers."""
    return [
        child
        for parent in model.modules()
        if any(holds_layers(child) for child in parent.children())
        for child in parent.children()
        if "Norm" in type(child).__name__
    ]


def holds_layers(module: torch.nn.Module) -> bool:
    first = next(module.children(), None) if isinstance(module, torch.nn.ModuleList) else None
    return isinstance(first, GradientCheckpointingLayer)


def run_eagerly() -> AbstractContextManager[None]:
    stance: AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
    return stance
