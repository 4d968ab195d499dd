"""Connects a model's layers to its context. Layers that keep latents or recurrent states are known by their class.

A class that is not in these tables is refused by name: its states would be silently wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from quire.core.errors import ModelError
from quire.worker.backends.recurrent import Recurrent
from quire.worker.mixers import griffin, indexed, latent, lightning
from quire.worker.mixers.context import ForwardContext
from quire.worker.mixers.packed import PackedMixer
from quire.worker.mixers.states import Form, StateMixer

_MAMBA2 = Form(lambda module: (module.head_dim, module.ssm_state_size))
_MAMBA1 = Form(lambda module: (module.ssm_state_size,), goes_on=False)
_GATED_DELTA = Form(lambda module: (module.head_k_dim, module.head_v_dim))
_KIMI_DELTA = Form(lambda module: (module.head_dim, module.head_dim))
_CONVOLUTION = Form()

STATES = {
    "BambaMixer": _MAMBA2,
    "FalconH1Mixer": _MAMBA2,
    "FalconMambaMixer": _MAMBA1,
    "GraniteMoeHybridMambaLayer": _MAMBA2,
    "JambaMambaMixer": _MAMBA1,
    "KimiLinearDeltaAttention": _KIMI_DELTA,
    "Lfm2MoeShortConv": _CONVOLUTION,
    "Lfm2ShortConv": _CONVOLUTION,
    "Mamba2Mixer": _MAMBA2,
    "MambaMixer": _MAMBA1,
    "NemotronHMamba2Mixer": _MAMBA2,
    "OlmoHybridGatedDeltaNet": _GATED_DELTA,
    "Qwen3NextGatedDeltaNet": _GATED_DELTA,
    "Qwen3_5GatedDeltaNet": _GATED_DELTA,
    "Qwen3_5MoeGatedDeltaNet": _GATED_DELTA,
    "Zamba2MambaMixer": _MAMBA2,
}

PAIRED: dict[
    str,
    tuple[Callable[..., Callable[..., torch.Tensor]], Callable[..., torch.Tensor], Callable[[Any], tuple[int, int]]],
] = {
    "MiniMaxLightningAttention": (lightning.LightningMixer, lightning.mix_alone, lightning.kept_numbers),
    "RecurrentGemmaRecurrentBlock": (griffin.GriffinMixer, griffin.mix_alone, griffin.kept_numbers),
}
"""States whose own code cannot continue from a page: what replaces it, the same for tokens alone, and how many numbers
it keeps of a row (for its convolution, besides). Layers expect a pair of results."""
LATENTS = frozenset({
    "AXK1Attention", "DeepseekV2Attention", "DeepseekV3Attention", "Glm4MoeLiteAttention", "KimiLinearAttention",
    "LongcatFlashMLA", "MiniCPM3Attention", "YoutuAttention",
})  # fmt: skip
INDEXED = frozenset({"DeepseekV32Attention", "GlmMoeDsaAttention"})
"""Latents of which an `indexer` selects those that a query reads. None: the layer uses an earlier one's selection."""


def attach(model: Any, context: ForwardContext) -> None:
    """Connects every layer of the model to the context's arena."""
    for module in model.modules():
        if getattr(module, "layer_idx", None) is not None:  # some MLPs have the attribute without a number
            context.take(module, _mixer(module, context))
            if type(module).__name__ in PAIRED:
                module.forward = partial(_paired, module.forward)
            if type(module).__name__ in LATENTS:
                latent.attach(module)
            if type(module).__name__ in INDEXED:
                indexed.attach(module, context)
    for norm in flat_norms(model):
        flatten(norm)
    _refuse_unknown(model, context)


def _paired(forward: Callable[..., torch.Tensor], hidden_states: torch.Tensor, **_options: Any) -> Any:
    return forward(hidden_states), None


def _mixer(module: Any, context: ForwardContext) -> Callable[..., torch.Tensor] | None:
    """Runs all rows at once where the backend computes states itself, otherwise group by group. None: the layer keeps
    tokens."""
    if type(module).__name__ in PAIRED:
        return PAIRED[type(module).__name__][0](module, context)
    if type(module).__name__ not in STATES:
        return None
    kept = (part for name, part in context.arena.layers[module.layer_idx].items() if name not in ("key", "value"))
    backend = context.backends[next(kept).kind]
    if isinstance(backend, Recurrent):
        return PackedMixer(module, context, backend)
    return StateMixer(module, context, STATES[type(module).__name__])


def flat_norms(model: Any) -> list[Any]:
    """Norms that `flatten` must change."""
    return [module for module in model.modules() if type(module).__name__ == "FalconH1RMSNormGated"]


def flatten(norm: Any) -> None:
    """Gives a norm its tokens as one row: with one token in each of several rows it loses an axis (transformers
    5.22)."""
    forward = partial(type(norm).forward, norm)

    def flat(tokens: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = forward(*(tensor.reshape(1, -1, tensor.shape[-1]) for tensor in (tokens, gate)))
        return out.view(tokens.shape)

    norm.forward = flat


def _refuse_unknown(model: Any, context: ForwardContext) -> None:
    classes: dict[int, set[str]] = {}
    for module in model.modules():
        if hasattr(module, "layer_idx"):
            classes.setdefault(module.layer_idx, set()).add(type(module).__name__)
    for layer, parts in context.arena.layers.items():
        kept = sorted(parts.keys() - {"key", "value"})
        known = INDEXED if "index" in kept else STATES.keys() | PAIRED.keys() | LATENTS | INDEXED
        if kept and not known & classes.get(layer, set()):
            names = ", ".join(sorted(classes.get(layer, ()))) or "no layer"
            raise ModelError(f"layer {layer} keeps {', '.join(kept)}, and nothing here runs {names} on it")
