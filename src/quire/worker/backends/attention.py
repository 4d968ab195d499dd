"""The reference attention: plain torch, every kind, any page. It reads only pages that the tables name.

write   new keys and values go to their slots
read    for each group of rows: gather tokens, score, mask, soften, mix
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from quire.worker.backends.batch import KindBatch, Reading
from quire.worker.pages.arena import PartView
from quire.worker.pages.quantised import decode, encode, is_quantised


@dataclass(frozen=True, slots=True)
class Scores:
    """How a layer changes its scores before the softmax."""

    scale: float
    softcap: float | None = None
    sinks: torch.Tensor | None = None
    """(head,): logits of a token that is always seen and has no value."""
    slopes: torch.Tensor | None = None
    """(head,): what a score loses with each token of distance (ALiBi), in fp32; for kinds that see every token."""


def write(kind: KindBatch, part: PartView, values: torch.Tensor) -> None:
    """Writes new tokens to their places."""
    if is_quantised(part):
        part.rows.view(torch.uint8).index_copy_(0, kind.new[part.cut], encode(part, values))
    else:
        part.rows.index_copy_(0, kind.new[part.cut], values.flatten(1).to(part.rows.dtype))


def read(kind: KindBatch, key: PartView, value: PartView, query: torch.Tensor, scores: Scores) -> torch.Tensor:
    """(token, head, width) of packed tokens in, the same out."""

    def attend(reading: Reading, queries: torch.Tensor) -> torch.Tensor:
        keys, values = (gather(reading, part, query.dtype) for part in (key, value))
        return mix(queries, keys, values, reading.mask, scores, is_causal=reading.is_causal)

    return for_each_reading(kind, query, value.tensor.shape[-1], attend)


def for_each_reading(
    kind: KindBatch, query: torch.Tensor, width: int, attend: Callable[[Reading, torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Cuts packed queries (token, head, width) into (row, head, query, width) for `attend`, and packs its results."""
    if len(kind.readings) == 1:  # all rows in their order: nothing to select
        (reading,) = kind.readings
        queries = query.view(*reading.queries.shape, *query.shape[1:])
        return attend(reading, queries.transpose(1, 2)).transpose(1, 2).flatten(0, 1)
    out = query.new_empty(*query.shape[:2], width)
    for reading in kind.readings:
        out[reading.queries] = attend(reading, query[reading.queries].transpose(1, 2)).transpose(1, 2)
    return out


def gather(reading: Reading, part: PartView, dtype: torch.dtype) -> torch.Tensor:
    """(row, head, token, width) of the tokens that rows read."""
    places = reading.tokens[part.cut]
    if is_quantised(part):
        found = part.rows.view(torch.uint8).index_select(0, places.view(-1))
        return decode(part, found.view(*places.shape, *part.tensor.shape[2:]), dtype).transpose(1, 2)
    found = part.rows.index_select(0, places.view(-1))
    return found.view(*places.shape, *part.tensor.shape[2:]).to(dtype).transpose(1, 2)


def mix(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scores: Scores,
    *,
    is_causal: bool = False,
) -> torch.Tensor:
    """(row, head, query, width) over (row, key head, token, width); the mask is (row, query, token). `is_causal`: it is
    the plain causal mask, half of which need not be computed."""
    seen = None if mask is None else mask[:, None]
    if scores.softcap is None and scores.sinks is None and scores.slopes is None:
        if is_causal and mask is not None:
            return functional.scaled_dot_product_attention(
                query, key, value, is_causal=True, scale=scores.scale, enable_gqa=query.shape[1] != key.shape[1]
            )
        return _plain(query, key, value, seen, scores.scale)
    repeat = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeat, dim=1), value.repeat_interleave(repeat, dim=1)
    raw = torch.matmul(query, key.transpose(2, 3)) * scores.scale
    if scores.softcap is not None:
        raw = scores.softcap * torch.tanh(raw / scores.softcap)
    if scores.slopes is not None:
        raw = raw + scores.slopes.float()[:, None, None] * _distances(mask, key.shape[2], key.device)[:, None]
    if seen is not None:
        raw = raw.masked_fill(~seen, float("-inf"))
    if scores.sinks is not None:
        sinks = scores.sinks.to(raw.dtype)[None, :, None, None].expand(*raw.shape[:3], 1)
        raw = torch.cat([raw, sinks], dim=-1)
    weights = torch.softmax(raw.float(), dim=-1).to(value.dtype)[..., : value.shape[2]]
    return torch.matmul(weights, value)


def _distances(mask: torch.Tensor | None, tokens: int, device: torch.device) -> torch.Tensor:
    """(row, query, token): from a query back to each token, negative, where queries see all tokens up to their own."""
    own = torch.full((1, 1, 1), tokens - 1, device=device) if mask is None else mask.sum(dim=-1, keepdim=True) - 1
    return torch.arange(tokens, device=device) - own


def _plain(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seen: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """Where each row has a single query, heads that share keys become queries of one head: keys are read once."""
    rows, heads, queries, width = query.shape
    attention = functional.scaled_dot_product_attention
    if queries > 1 or heads == key.shape[1]:
        return attention(query, key, value, attn_mask=seen, scale=scale, enable_gqa=heads != key.shape[1])
    grouped = query.reshape(rows, key.shape[1], -1, width)
    return attention(grouped, key, value, attn_mask=seen, scale=scale).reshape(rows, heads, 1, -1)
