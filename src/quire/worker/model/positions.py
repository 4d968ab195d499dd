"""Fixes what a model derives from a whole call instead of each token's position. A step packs tokens of many requests
into one call, so no result may depend on the others.

longrope, dynamic   rotary frequencies depend on the greatest position of a call     ─▶ on the plan's longest length
Phi-3.5-MoE         so does a factor of its rotary embedding                         ─▶ likewise
Llama 4             counts a call's tokens to scale the queries of long sequences    ─▶ on each token's position
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MethodType
from typing import Any

import torch

from quire.models.shape import Rope
from quire.worker.mixers.temperature import Temperature

FIXED = "fixed for the plan"
"""Replaces the rope type: transformers' rotary embeddings then keep their frequencies."""


def fix_positions(model: Any, max_length: int) -> None:
    """Makes the model depend on the plan's longest length instead of the call. Called before the model first runs, on
    the device where it runs."""
    if hasattr(model, "quire_length"):
        assert model.quire_length == max_length, "positions of a model are fixed for one length"
        return
    model.quire_length = max_length
    model.quire_ropes = tuple(dict.fromkeys(rope.chosen(max_length) for rope in ropes_of(model)))
    for module in model.modules():
        if _is_phimoe(module):
            _fix_phimoe(module, max_length)
        elif any(_ropes(module)):
            _fix_rotary(module, max_length)
        elif _counts(module):
            module.quire_temperature = Temperature(module.attn_scale, module.floor_scale)
            module.attn_temperature_tuning = False


def ropes_of(model: Any) -> list[Rope]:
    """Rotary embeddings that depend on the length of a call; none after `fix_positions`."""
    return [rope for module in model.modules() for rope in _ropes(module)]


def chosen_ropes(model: Any) -> tuple[str, ...]:
    """The rotary frequencies that `fix_positions` chose."""
    follows = [type(module).__name__ for module in model.modules() if any(_ropes(module)) or _counts(module)]
    assert not follows, f"{follows[0]} depends on the call: fix_positions comes before a model runs"
    chosen: tuple[str, ...] = getattr(model, "quire_ropes", ())
    return chosen


def _counts(module: Any) -> bool:
    """Whether a layer counts the tokens of a call; layers with rotary positions never do."""
    return bool(getattr(module, "attn_temperature_tuning", False)) and not getattr(module, "use_rope", True)


def _is_phimoe(module: Any) -> bool:
    return type(module).__name__ == "PhimoeRotaryEmbedding"


def _ropes(module: Any) -> Iterator[Rope]:
    """The ropes of a rotary embedding that depend on the length of a call."""
    types = getattr(module, "rope_type", None)
    for layers, sort in sorted((types if isinstance(types, dict) else {"": types or ""}).items()):
        if sort == "longrope" or (_is_phimoe(module) and sort not in ("default", FIXED)):
            parameters = module.config.rope_parameters
            own = parameters[layers] if layers else parameters
            yield Rope("longrope", own["original_max_position_embeddings"], layers)
        elif "dynamic" in sort:
            yield Rope("dynamic", module.config.max_position_embeddings, layers)


def _fix_rotary(module: Any, max_length: int) -> None:
    """Lets transformers' own code choose, as in a call of the longest length, and then keeps the choice."""
    buffer = next(module.buffers())
    last = torch.tensor([[max_length - 1]], device=buffer.device)
    example = torch.zeros(1, 1, 1, device=buffer.device)
    if not isinstance(module.rope_type, dict):
        module(example, last)
        module.rope_type = FIXED
        return
    for layers, sort in module.rope_type.items():
        if sort == "longrope" or "dynamic" in sort:
            module(example, last, layers)
            module.rope_type[layers] = FIXED


def _fix_phimoe(module: Any, max_length: int) -> None:
    """Its class computes its frequencies in every call: always the short ones, with a factor by the call's length."""
    parameters = module.config.rope_parameters
    frequencies, factor = module.rope_init_fn(module.config)
    if parameters["rope_type"] != "default":
        is_long = max_length > parameters["original_max_position_embeddings"]
        factor = parameters["long_mscale" if is_long else "short_mscale"]
    module.inv_freq, module.attention_scaling = frequencies.to(module.inv_freq.device), factor
    module.rope_type = FIXED
    module.forward = MethodType(_rotation, module)


@torch.no_grad()
def _rotation(module: Any, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    angles = position_ids[..., None].float() * module.inv_freq.float()
    both = torch.cat((angles, angles), dim=-1)
    cosines, sines = (wave * module.attention_scaling for wave in (both.cos(), both.sin()))
    return cosines.to(x.dtype), sines.to(x.dtype)
