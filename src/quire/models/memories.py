"""The memories that families are made of, each from the configuration's own numbers."""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.dtypes import DType
from quire.core.memory import Follows, Memory, Part
from quire.core.units import ceil_div

QUANTISED_GROUP = 128
"""Latents and index keys stored in 8 bits carry one fp32 scale for each 128 numbers."""


@dataclass(frozen=True, slots=True)
class Heads:
    """Attention heads, and the names of the fields that their sizes came from."""

    query: int
    kv: int
    key_dim: int
    value_dim: int
    kv_field: str = "num_key_value_heads"
    dim_field: str = "head_dim"


def key_value_parts(heads: Heads) -> tuple[Part, ...]:
    origin = f"{heads.kv_field} {heads.kv} × {heads.dim_field}"
    return (
        Part("key", heads.kv, heads.key_dim, follows=Follows.KV, origin=f"{origin} {heads.key_dim}"),
        Part("value", heads.kv, heads.value_dim, follows=Follows.KV, origin=f"{origin} {heads.value_dim}"),
    )


def full(heads: Heads) -> Memory:
    return Memory("full", key_value_parts(heads))


def windowed(heads: Heads, window: int, sinks: int = 0) -> Memory:
    """The last `window` tokens, the current one among them; with sinks, the first ones too."""
    if sinks:
        return Memory("sink", key_value_parts(heads), window=window, sinks=sinks)
    return Memory("window", key_value_parts(heads), window=window)


def chunked(heads: Heads, chunk: int) -> Memory:
    return Memory("chunked", key_value_parts(heads), chunk=chunk)


def index_part(width: int) -> Part:
    """The index key of a folded state, always in 8 bits (DeepSeek-V4)."""
    return Part("index", 1, width, DType.FP8, replicated=True, scale_bytes=4, origin=f"index_head_dim {width}")


def _row(name: str, width: int, field: str) -> Part:
    """One row for all heads, in the dtype of keys and values."""
    scales = 4 * ceil_div(width, QUANTISED_GROUP)
    return Part(name, 1, width, follows=Follows.KV, replicated=True, scale_bytes=scales, origin=f"{field} {width}")


def latent_parts(rank: int, rope: int) -> tuple[Part, ...]:
    return (
        _row("latent", rank, "kv_lora_rank"),
        Part("rope", 1, rope, follows=Follows.ACTIVATIONS, replicated=True, origin=f"qk_rope_head_dim {rope}"),
    )


def latent(rank: int, rope: int) -> Memory:
    """MLA: one latent row for all heads."""
    return Memory("latent", latent_parts(rank, rope))


def indexed(parts: tuple[Part, ...], top_tokens: int, index_width: int | None = None) -> Memory:
    """Latents of which a query reads `top_tokens`, selected by an index key of `index_width` numbers for each token.
    Without one the layer uses the selection of an earlier layer."""
    index = () if index_width is None else (_row("index", index_width, "index_head_dim"),)
    return Memory.of("indexed", parts + index, {"top_tokens": top_tokens})


def state(*parts: Part) -> Memory:
    """A convolution of one column keeps nothing: its part is left out."""
    return Memory("state", tuple(part for part in parts if part.width), purpose="state")


def recurrent(name: str, heads: int, width: int, dtype: DType, origin: str) -> Part:
    """A matrix that every token rewrites."""
    return Part(name, heads, width, dtype, Follows.STATE, origin=origin)


def columns(name: str, heads: int, width: int, kernel: int, origin: str) -> Part:
    """The inputs a causal convolution still needs: one column fewer than its kernel is long."""
    origin = f"{origin} × ({kernel} − 1)"
    return Part(name, heads, width * (kernel - 1), follows=Follows.ACTIVATIONS, origin=origin)
