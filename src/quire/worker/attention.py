"""The reference attention: plain torch, every kind, any page. It reads nothing but pages that the tables name.

write   new keys and values go to their slots
read    for each group of rows: gather pages, score, mask, soften, mix
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from quire.worker.arena import Arena, PartView
from quire.worker.batch import Batch, Reading


@dataclass(frozen=True, slots=True)
class Scores:
    """What a layer does to its scores beside scaling them."""

    scale: float
    softcap: float | None = None
    sinks: torch.Tensor | None = None
    """(head,): logits of a token that is always seen and has no value."""


def attend(
    arena: Arena, batch: Batch, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scores: Scores
) -> torch.Tensor:
    """(token, head, width) of packed tokens in, the same out."""
    parts = arena.layers[layer]
    write(batch, parts["key"], key)
    write(batch, parts["value"], value)
    return read(batch, parts["key"], parts["value"], query, scores)


def write(batch: Batch, part: PartView, values: torch.Tensor) -> None:
    """New tokens into their slots."""
    kind = batch.kinds[part.kind]
    part.tensor[kind.new_addresses[part.group], kind.new_slots] = values.to(part.tensor.dtype)


def read(batch: Batch, key: PartView, value: PartView, query: torch.Tensor, scores: Scores) -> torch.Tensor:
    out = query.new_empty(query.shape[0], query.shape[1], value.tensor.shape[-1])
    for reading in batch.kinds[key.kind].readings:
        keys, values = (gather(reading, part, query.dtype) for part in (key, value))
        mixed = mix(query[reading.queries].transpose(1, 2), keys, values, reading.mask[:, None], scores)
        out[reading.queries] = mixed.transpose(1, 2)
    return out


def gather(reading: Reading, part: PartView, dtype: torch.dtype) -> torch.Tensor:
    """(row, head, token, width) of the pages that rows read; 0 where nobody looks, so that nothing spills."""
    pages = reading.pages[part.group]
    found = part.pages(pages.reshape(-1))
    tokens = found.view(len(pages), -1, *found.shape[2:]).to(dtype)
    tokens[reading.unseen] = 0
    return tokens.transpose(1, 2)


def mix(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scores: Scores
) -> torch.Tensor:
    """(row, head, query, width) over (row, key head, token, width)."""
    if scores.softcap is None and scores.sinks is None:
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=scores.scale, enable_gqa=query.shape[1] != key.shape[1]
        )
    repeat = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeat, dim=1), value.repeat_interleave(repeat, dim=1)
    raw = torch.matmul(query, key.transpose(2, 3)) * scores.scale
    if scores.softcap is not None:
        raw = scores.softcap * torch.tanh(raw / scores.softcap)
    raw = raw.masked_fill(~mask, float("-inf"))
    if scores.sinks is not None:
        sinks = scores.sinks.to(raw.dtype)[None, :, None, None].expand(*raw.shape[:3], 1)
        raw = torch.cat([raw, sinks], dim=-1)
    weights = torch.softmax(raw.float(), dim=-1).to(value.dtype)[..., : value.shape[2]]
    return torch.matmul(weights, value)
