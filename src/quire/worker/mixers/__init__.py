"""Layers that keep more than keys and values: latents and recurrent states, by the class that transformers gives them.

A class that is not in these tables is refused by name: what it keeps would be wrong without a word.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from quire.core.errors import ModelError
from quire.worker.mixers import latent
from quire.worker.mixers.packed import PackedMixer
from quire.worker.mixers.seat import Seat
from quire.worker.mixers.states import Form, StateMixer
from quire.worker.recurrent import Recurrent

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
    "Qwen3NextGatedDeltaNet": _GATED_DELTA,
    "Qwen3_5GatedDeltaNet": _GATED_DELTA,
    "Qwen3_5MoeGatedDeltaNet": _GATED_DELTA,
}

LATENTS = frozenset({"DeepseekV2Attention", "DeepseekV3Attention", "KimiLinearAttention"})


def attach(model: Any, seat: Seat) -> None:
    """Puts the seat's arena under every layer of the model."""
    for module in model.modules():
        if getattr(module, "layer_idx", None) is not None:  # some give their MLPs the name and no number
            seat.take(module, _mixer(module, seat) if type(module).__name__ in STATES else None)
            if type(module).__name__ in LATENTS:
                latent.attach(module)
    for norm in flat_norms(model):
        flatten(norm)
    _refuse_unknown(model, seat)


def _mixer(module: Any, seat: Seat) -> Callable[..., torch.Tensor]:
    """All rows at once where the backend of states runs them itself, else those that are alike."""
    kept = (part for name, part in seat.arena.layers[module.layer_idx].items() if name not in ("key", "value"))
    backend = seat.backends[next(kept).kind]
    if isinstance(backend, Recurrent):
        return PackedMixer(module, seat, backend)
    return StateMixer(module, seat, STATES[type(module).__name__])


def flat_norms(model: Any) -> list[Any]:
    """Norms that have to be flattened before tokens of several rows go through them, one of each."""
    return [module for module in model.modules() if type(module).__name__ == "FalconH1RMSNormGated"]


def flatten(norm: Any) -> None:
    """With one token in each of several rows, this norm loses an axis (transformers 5.22): tokens go in as one row."""
    forward = partial(type(norm).forward, norm)

    def flat(tokens: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = forward(*(tensor.reshape(1, -1, tensor.shape[-1]) for tensor in (tokens, gate)))
        return out.view(tokens.shape)

    norm.forward = flat


def _refuse_unknown(model: Any, seat: Seat) -> None:
    classes: dict[int, set[str]] = {}
    for module in model.modules():
        if hasattr(module, "layer_idx"):
            classes.setdefault(module.layer_idx, set()).add(type(module).__name__)
    for layer, parts in seat.arena.layers.items():
        kept = sorted(parts.keys() - {"key", "value"})
        known = not kept or any(name in STATES or name in LATENTS for name in classes.get(layer, ()))
        if not known or "index" in kept:
            names = ", ".join(sorted(classes.get(layer, ()))) or "no layer"
            raise ModelError(f"layer {layer} keeps {', '.join(kept)}, and nothing here runs {names} on it")
