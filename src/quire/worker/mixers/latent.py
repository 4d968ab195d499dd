"""Multi-head latent attention: one latent and one rotary key a token are kept, for all heads together.

    expanded   key and value of every token read are made from its latent: cheaper for many queries
    absorbed   queries go into the latents' space, the result comes back from it: cheaper for few

A layer hands its latents to `expand_kv` before it attends: that is the seam, for they must be kept before they grow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from quire.worker.arena import PartView
from quire.worker.attention import Scores, for_each_reading, gather, mix, write
from quire.worker.batch import Batch, Reading


def attach(module: Any) -> None:
    """Latent and rotary key go through to the attention interface, in the places of key and value."""
    module.expand_kv = lambda latent, rope: (latent, rope)


def attend(
    module: Any,
    batch: Batch,
    parts: Mapping[str, PartView],
    query: torch.Tensor,
    latent: torch.Tensor,
    rope: torch.Tensor,
    scores: Scores,
) -> torch.Tensor:
    """(token, head, width) of packed tokens in, the same out; latent and rotary key have one head."""
    kind = batch.kinds[parts["latent"].kind]
    write(kind, parts["latent"], latent)
    write(kind, parts["rope"], rope)

    def answer(reading: Reading, asked: torch.Tensor) -> torch.Tensor:
        latents, ropes = (gather(reading, parts[name], query.dtype) for name in ("latent", "rope"))
        way = absorbed if _few(module, asked.shape[2]) else expanded
        return way(module, asked, latents, ropes, reading.mask, scores)

    return for_each_reading(kind, query, module.v_head_dim, answer)


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
    weight = module.kv_b_proj.weight.view(query.shape[1], -1, module.kv_lora_rank)
    own: int = module.qk_nope_head_dim
    up_key, up_value = weight[:, :own], weight[:, own:]
    plain, turned = query[..., :own], query[..., own:]
    asked = torch.cat([torch.einsum("rhqn,hnk->rhqk", plain, up_key), turned], dim=-1)
    found = mix(asked, torch.cat([latents, ropes], dim=-1), latents, mask, scores)
    return torch.einsum("rhqk,hvk->rhqv", found, up_value)
