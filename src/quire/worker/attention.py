"""The reference attention: plain torch, every kind, any page. It reads nothing but pages that the tables name.

write   new keys and values go to their slots
read    for each group of rows: gather tokens, score, mask, soften, mix
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from quire.worker.arena import PartView
from quire.worker.batch import KindBatch, Reading
from quire.worker.quantised import decode, encode, is_quantised


@dataclass(frozen=True, slots=True)
class Scores:
    """What a layer does to its scores beside scaling them."""

    scale: float
    softcap: float | None = None
    sinks: torch.Tensor | None = None
    """(head,): logits of a token that is always seen and has no value."""


def write(kind: KindBatch, part: PartView, values: torch.Tensor) -> None:
    """New tokens into their places."""
    if is_quantised(part):
        part.rows.view(torch.uint8).index_copy_(0, kind.new[part.cut], encode(part, values))
    else:
        part.rows.index_copy_(0, kind.new[part.cut], values.flatten(1).to(part.rows.dtype))


def read(kind: KindBatch, key: PartView, value: PartView, query: torch.Tensor, scores: Scores) -> torch.Tensor:
    """(token, head, width) of packed tokens in, the same out."""

    def answer(reading: Reading, asked: torch.Tensor) -> torch.Tensor:
        keys, values = (gather(reading, part, query.dtype) for part in (key, value))
        return mix(asked, keys, values, reading.mask, scores, is_causal=reading.is_causal)

    return for_each_reading(kind, query, value.tensor.shape[-1], answer)


def for_each_reading(
    kind: KindBatch, query: torch.Tensor, width: int, answer: Callable[[Reading, torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Cuts packed queries (token, head, width) into (row, head, query, width) for `answer`, and packs what it says."""
    if len(kind.readings) == 1:  # all rows in their order: nothing to pick
        (reading,) = kind.readings
        asked = query.view(*reading.queries.shape, *query.shape[1:])
        return answer(reading, asked.transpose(1, 2)).transpose(1, 2).flatten(0, 1)
    out = query.new_empty(*query.shape[:2], width)
    for reading in kind.readings:
        out[reading.queries] = answer(reading, query[reading.queries].transpose(1, 2)).transpose(1, 2)
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
    the plain causal one, half of which need not be computed."""
    seen = None if mask is None else mask[:, None]
    if scores.softcap is None and scores.sinks is None:
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
    if seen is not None:
        raw = raw.masked_fill(~seen, float("-inf"))
    if scores.sinks is not None:
        sinks = scores.sinks.to(raw.dtype)[None, :, None, None].expand(*raw.shape[:3], 1)
        raw = torch.cat([raw, sinks], dim=-1)
    weights = torch.softmax(raw.float(), dim=-1).to(value.dtype)[..., : value.shape[2]]
    return torch.matmul(weights, value)


def _plain(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seen: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """Heads that share keys go as queries of one head where each has a single query: keys are read once for all."""
    rows, heads, queries, width = query.shape
    attention = functional.scaled_dot_product_attention
    if queries > 1 or heads == key.shape[1]:
        return attention(query, key, value, attn_mask=seen, scale=scale, enable_gqa=heads != key.shape[1])
    grouped = query.reshape(rows, key.shape[1], -1, width)
    return attention(grouped, key, value, attn_mask=seen, scale=scale).reshape(rows, heads, 1, -1)
