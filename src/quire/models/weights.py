"""Parameter counts of the pieces that layers are made of."""

from __future__ import annotations

from dataclasses import dataclass

from quire.models.blueprint import Weights
from quire.models.memories import Heads


def norms(*widths: int) -> Weights:
    return Weights(replicated=sum(widths))


def linear(inputs: int, outputs: int, bias: bool = False) -> Weights:
    return Weights(matrices=inputs * outputs, plain=outputs if bias else 0)


@dataclass(frozen=True, slots=True)
class AttentionStyle:
    """What varies between families whose attention is four projections."""

    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: str = "none"
    """none; head: one norm of head_dim for all heads; all: one norm over all heads together."""
    gated: bool = False
    """The query projection is twice as wide: half of it gates the output."""


def attention(hidden: int, heads: Heads, style: AttentionStyle) -> Weights:
    query = heads.query * heads.key_dim
    key, value = heads.kv * heads.key_dim, heads.kv * heads.value_dim
    total = linear(hidden, query * (2 if style.gated else 1), style.qkv_bias)
    total += linear(hidden, key, style.qkv_bias) + linear(hidden, value, style.qkv_bias)
    total += linear(heads.query * heads.value_dim, hidden, style.output_bias)
    norm = {"none": 0, "head": 2 * heads.key_dim, "all": query + key}[style.qk_norm]
    return total + norms(norm)


def mlp(hidden: int, width: int, bias: bool = False, gated: bool = True) -> Weights:
    up = linear(hidden, width, bias)
    return (up + up if gated else up) + linear(width, hidden, bias)


def experts(hidden: int, width: int, count: int, gated: bool = True) -> Weights:
    return Weights(experts=count * (3 if gated else 2) * hidden * width)


def router(hidden: int, count: int, bias: bool = False) -> Weights:
    return Weights(replicated=hidden * count + (count if bias else 0))


@dataclass(frozen=True, slots=True)
class LatentSizes:
    """MLA's widths."""

    heads: int
    query_rank: int | None
    rank: int
    nope: int
    rope: int
    value: int


def latent_attention(hidden: int, sizes: LatentSizes, bias: bool = False) -> Weights:
    query = sizes.heads * (sizes.nope + sizes.rope)
    down = hidden * (sizes.rank + sizes.rope)
    total = Weights(latent=down, replicated=sizes.rank + ((sizes.rank + sizes.rope) if bias else 0))
    if sizes.query_rank is None:
        total += linear(hidden, query)
    else:
        total += Weights(latent=hidden * sizes.query_rank, replicated=sizes.query_rank * (2 if bias else 1))
        total += linear(sizes.query_rank, query)
    total += Weights(plain=sizes.rank * sizes.heads * (sizes.nope + sizes.value))  # read by attention, never packed
    return total + linear(sizes.heads * sizes.value, hidden, bias)


def indexer(hidden: int, query_rank: int, heads: int, width: int) -> Weights:
    """DeepSeek's sparse indexer: every rank computes it whole."""
    return Weights(latent=query_rank * heads * width + hidden * width + hidden * heads, replicated=2 * width)


def draft_glue(hidden: int) -> Weights:
    """What joins an MTP layer to the model: a projection of [embedding, hidden] and three norms."""
    return Weights(matrices=2 * hidden * hidden, replicated=3 * hidden)
