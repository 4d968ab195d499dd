"""Multi-head latent attention: one latent and one rotary key a token are kept, for all heads together.

    expanded   key and value of every token read are made from its latent: cheaper for many queries
    absorbed   queries go into the latents' space, the result comes back from it: cheaper for few

The reference chooses; other backends are asked in the latents' space.
A layer hands its latents to `expand_kv` before it attends: that is the seam, for they must be kept before they grow.
"""

from __future__ import annotations

from typing import Any

import torch

from quire.worker.attention import Scores, for_each_reading, gather, mix, write
from quire.worker.batch import KindBatch, Reading
from quire.worker.mixers.seat import Seat


def attach(module: Any) -> None:
    """Latent and rotary key go through to the attention interface, in the places of key and value."""
    module.expand_kv = lambda latent, rope: (latent, rope)
    module.quire_is_latent = True


def attend(
    module: Any, seat: Seat, query: torch.Tensor, latent: torch.Tensor, rope: torch.Tensor, scores: Scores
) -> torch.Tensor:
    """(token, head, width) of packed tokens in, the same out; latent and rotary key have one head."""
    if seat.number or _kind(seat, module.layer_idx).kernel is not None:
        up_key, up_value = _ups(module, query.shape[1])
        asked = _absorb(module, up_key, query)
        found = seat.attend(module, asked, latent, rope, scores, module.kv_lora_rank)
        return torch.einsum("thk,hvk->thv", found, up_value)
    parts, kind = seat.arena.layers[module.layer_idx], _kind(seat, module.layer_idx)
    write(kind, parts["latent"], latent)
    write(kind, parts["rope"], rope)

    def answer(reading: Reading, asked: torch.Tensor) -> torch.Tensor:
        latents, ropes = (gather(reading, parts[name], query.dtype) for name in ("latent", "rope"))
        way = absorbed if _few(module, asked.shape[2]) else expanded
        return way(module, asked, latents, ropes, reading.mask, scores)

    return for_each_reading(kind, query, module.v_head_dim, answer)


def _kind(seat: Seat, layer: int) -> KindBatch:
    return seat.running().kinds[seat.arena.layers[layer]["latent"].kind]


def _few(module: Any, queries: int) -> bool:
    """Multiplications for each token read and each head: absorbed against expanded."""
    rank, own = module.kv_lora_rank, module.qk_nope_head_dim + module.v_head_dim
    return bool(queries * (2 * rank - own) < rank * own)


def expanded(
    module: Any,
    query: torch.Tensor,
    latents: torch.Tensor,
    ropes: torch.Tensor,
    mask: torch.Tensor | None,
    scores: Scores,
) -> torch.Tensor:
    key, value = type(module).expand_kv(module, latents, ropes)
    return mix(query, key, value, mask, scores)


def absorbed(
    module: Any,
    query: torch.Tensor,
    latents: torch.Tensor,
    ropes: torch.Tensor,
    mask: torch.Tensor | None,
    scores: Scores,
) -> torch.Tensor:
    """A score is query · (up · latent) = (query · up) · latent, and so with values."""
    up_key, up_value = _ups(module, query.shape[1])
    asked = _absorb(module, up_key, query.transpose(1, 2)).transpose(1, 2)
    found = mix(asked, torch.cat([latents, ropes], dim=-1), latents, mask, scores)
    return torch.einsum("rhqk,hvk->rhqv", found, up_value)


def _ups(module: Any, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(head, width, rank): what makes keys and values from latents."""
    weight: torch.Tensor = module.kv_b_proj.weight.view(heads, -1, module.kv_lora_rank)
    own: int = module.qk_nope_head_dim
    return weight[:, :own], weight[:, own:]


def _absorb(module: Any, up_key: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """(…, head, width) into the latents' space; the rotary part stays as it is, behind."""
    own: int = module.qk_nope_head_dim
    return torch.cat([torch.einsum("...hn,hnk->...hk", query[..., :own], up_key), query[..., own:]], dim=-1)
