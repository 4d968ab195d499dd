"""What a model derives from the call instead of from each token's position, fixed once: a step packs tokens of many
requests into one call, so nothing may depend on which others are in it.

longrope, dynamic   rotary frequencies follow from the greatest position of a call   ─▶ from the plan's longest length
Phi-3.5-MoE         so does a factor of its rotary embedding                         ─▶ likewise
Llama 4             counts a call's tokens to scale the queries of long sequences    ─▶ from the batch's positions
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch

from quire.models.shape import Rope

FIXED = "fixed for the plan"
"""In place of a rope type: transformers' rotary embeddings then leave their frequencies alone."""


@dataclass(frozen=True, slots=True)
class Temperature:
    """Queries of long sequences are scaled up: log(1 + floor((position + 1) / floor_tokens)) · strength + 1."""

    strength: float
    floor_tokens: float

    def scaled(self, query: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """(token, head, width) of tokens at these positions."""
        steps = torch.floor((positions.float() + 1.0) / self.floor_tokens)
        factors = torch.log1p(steps) * self.strength + 1.0
        return (query * factors[:, None, None]).to(query.dtype)


def fix_positions(model: Any, max_length: int) -> None:
    """Before anything runs, on the device where the model runs: what follows from the call follows from the longest
    length of the plan from here on."""
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
    """Those that follow from the length of a call; none once they are fixed."""
    return [rope for module in model.modules() for rope in _ropes(module)]


def chosen_ropes(model: Any) -> tuple[str, ...]:
    """What `fix_positions` chose."""
    follows = [type(module).__name__ for module in model.modules() if any(_ropes(module)) or _counts(module)]
    assert not follows, f"{follows[0]} follows from the call: fix_positions comes before a model runs"
    chosen: tuple[str, ...] = getattr(model, "quire_ropes", ())
    return chosen


def _counts(module: Any) -> bool:
    """Whether a layer counts the tokens of a call; those with rotary positions never do."""
    return bool(getattr(module, "attn_temperature_tuning", False)) and not getattr(module, "use_rope", True)


def _is_phimoe(module: Any) -> bool:
    return type(module).__name__ == "PhimoeRotaryEmbedding"


def _ropes(module: Any) -> Iterator[Rope]:
    """Of a rotary embedding: those that follow from the length of a call."""
    types = getattr(module, "rope_type", None)
    for layers, sort in sorted((types if isinstance(types, dict) else {"": types or ""}).items()):
        if sort == "longrope" or (_is_phimoe(module) and sort not in ("default", FIXED)):
            parameters = module.config.rope_parameters
            own = parameters[layers] if layers else parameters
            yield Rope("longrope", own["original_max_position_embeddings"], layers)
        elif "dynamic" in sort:
            yield Rope("dynamic", module.config.max_position_embeddings, layers)


def _fix_rotary(module: Any, max_length: int) -> None:
    """transformers' own code chooses, as in a call that reaches the longest length, and is not asked again."""
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
    """Its class makes its frequencies anew in every call: always the short ones, with a factor by the call's length."""
    parameters = module.config.rope_parameters
    frequencies, factor = module.rope_init_fn(module.config)
    if parameters["rope_type"] != "default":
        is_long = max_length > parameters["original_max_position_embeddings"]
        factor = parameters["long_mscale" if is_long else "short_mscale"]
    module.inv_freq, module.attention_scaling = frequencies.to(module.inv_freq.device), factor
    module.rope_type = FIXED
    module.forward = MethodType(_turned, module)


@torch.no_grad()
def _turned(module: Any, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    angles = position_ids[..., None].float() * module.inv_freq.float()
    both = torch.cat((angles, angles), dim=-1)
    cosines, sines = (turned * module.attention_scaling for turned in (both.cos(), both.sin()))
    return cosines.to(x.dtype), sines.to(x.dtype)
