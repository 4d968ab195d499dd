"""Multi-head latent attention: each token keeps one latent and one rotary key for all heads.

    expanded   keys and values are computed from the latents that are read: cheaper for many queries
    absorbed   queries are projected to the latents' space, results back from it: cheaper for few

The reference chooses; other backends work in the latents' space. A layer passes its latents to `expand_kv` before it
attends. That call is replaced, because latents must be stored before they are expanded.
"""

from __future__ import annotations

from typing import Any

import torch

from quire.worker.backends.attention import Scores, for_each_reading, gather, mix, write
from quire.worker.backends.batch import KindBatch, Reading
from quire.worker.mixers.context import ForwardContext


def attach(module: Any) -> None:
    """Passes latent and rotary key to the attention interface as key and value."""
    module.expand_kv = lambda latent, rope: (latent, rope)
    module.quire_is_latent = True


def attend(
    module: Any,
    context: ForwardContext,
    query: torch.Tensor,
    latent: torch.Tensor,
    rope: torch.Tensor,
    scores: Scores,
    *,
    selected: KindBatch | None = None,
) -> torch.Tensor:
    """(token, head, width) of packed tokens in, the same out; latent and rotary key have one head. `selected`: the
    kind's batch with masks of what an indexer selected; default: queries read all that they see."""
    if context.is_compiled or _kind(context, module.layer_idx).kernel is not None:
        up_key, up_value = _ups(module, query.shape[1])
        absorbed = _absorb(module, up_key, query)
        found = context.attend(module, absorbed, latent, rope, scores, module.kv_lora_rank)
        return torch.einsum("thk,hvk->thv", found, up_value)
    parts, kind = context.arena.layers[module.layer_idx], selected or _kind(context, module.layer_idx)
    write(kind, parts["latent"], latent)
    write(kind, parts["rope"], rope)

    def attend_reading(reading: Reading, queries: torch.Tensor) -> torch.Tensor:
        latents, ropes = (gather(reading, parts[name], query.dtype) for name in ("latent", "rope"))
        mix_latents = mix_absorbed if _few(module, queries.shape[2]) else mix_expanded
        return mix_latents(module, queries, latents, ropes, reading.mask, scores)

    return for_each_reading(kind, query, module.v_head_dim, attend_reading)


def _kind(context: ForwardContext, layer: int) -> KindBatch:
    return context.running().kinds[context.arena.layers[layer]["latent"].kind]


def _few(module: Any, queries: int) -> bool:
    """Whether absorbed attention takes fewer multiplications per token and head than expanded attention."""
    rank, own = module.kv_lora_rank, module.qk_nope_head_dim + module.v_head_dim
    return bool(queries * (2 * rank - own) < rank * own)


def mix_expanded(
    module: Any,
    query: torch.Tensor,
    latents: torch.Tensor,
    ropes: torch.Tensor,
    mask: torch.Tensor | None,
    scores: Scores,
) -> torch.Tensor:
    key, value = type(module).expand_kv(module, latents, ropes)
    return mix(query, key, value, mask, scores)


def mix_absorbed(
    module: Any,
    query: torch.Tensor,
    latents: torch.Tensor,
    ropes: torch.Tensor,
    mask: torch.Tensor | None,
    scores: Scores,
) -> torch.Tensor:
    """A score is query · (up · latent) = (query · up) · latent, and likewise for values."""
    up_key, up_value = _ups(module, query.shape[1])
    projected = _absorb(module, up_key, query.transpose(1, 2)).transpose(1, 2)
    found = mix(projected, torch.cat([latents, ropes], dim=-1), latents, mask, scores)
    return torch.einsum("rhqk,hvk->rhqv", found, up_value)


def _ups(module: Any, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(head, width, rank): projections from latents to keys and to values."""
    weight: torch.Tensor = module.kv_b_proj.weight.view(heads, -1, module.kv_lora_rank)
    own: int = module.qk_nope_head_dim
    return weight[:, :own], weight[:, own:]


def _absorb(module: Any, up_key: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Projects (…, head, width) to the latents' space; the rotary part follows unchanged."""
    own: int = module.qk_nope_head_dim
    return torch.cat([torch.einsum("...hn,hnk->...hk", query[..., :own], up_key), query[..., own:]], dim=-1)
