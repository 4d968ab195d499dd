"""Zamba2: Mamba-2 in every layer; some also run one of a few attention blocks that they share."""

from __future__ import annotations

from quire.models.blueprint import Block, Blueprint, Family, Weights
from quire.models.families.common import must_divide, read_trunk
from quire.models.families.mixers import Mamba2, state_dtype
from quire.models.fields import Fields
from quire.models.memories import Heads, full
from quire.models.weights import AttentionStyle, attention, linear, mlp, norms

_WORDS = {"linear_attention": "mamba", "mamba": "mamba", "hybrid": "hybrid"}
_NAMES = ("n_mamba_heads", "mamba_expand × hidden_size ÷ n_mamba_heads", "mamba_ngroups", "mamba_d_state")


def _kinds(fields: Fields, layers: int) -> list[str]:
    kinds = fields.kinds("layers_block_type", layers, _WORDS) or fields.kinds("layer_types", layers, _WORDS)
    if kinds is None:
        raise fields.missing("layers_block_type", "say which layers are mamba and which hybrid, releases differ")
    fields.raw("layer_types", "hybrid_layer_ids")
    return kinds


def _mixer(fields: Fields, hidden: int) -> Mamba2:
    heads, groups = fields.integer("n_mamba_heads"), fields.integer("mamba_ngroups", absent=1)
    must_divide(heads, groups, "n_mamba_heads", "mamba_ngroups", "each group serves equally many heads")
    inner = fields.integer("mamba_expand", absent=2) * hidden
    dim = must_divide(inner, heads, "mamba_expand × hidden_size", "n_mamba_heads", "heads are equally wide")
    fields.raw("mamba_headdim")
    sizes = fields.integer("mamba_d_state"), fields.integer("mamba_d_conv", minimum=2)
    return Mamba2(heads, dim, groups, *sizes, state_dtype(fields), _NAMES)


def _heads(fields: Fields, hidden: int) -> Heads:
    """Attention reads the layer's input and the token's embedding side by side: it is twice as wide."""
    query = fields.integer("num_attention_heads")
    kv = fields.integer("num_key_value_heads", absent=query)
    must_divide(query, kv, "num_attention_heads", "num_key_value_heads", "each K/V head serves equally many queries")
    stated = fields.optional_integer("attention_head_dim", "head_dim")
    usual = must_divide(2 * hidden, query, "2 × hidden_size", "num_attention_heads", "heads are equally wide")
    fields.raw("attention_hidden_size", "kv_channels", "num_query_groups")
    dim = stated or usual
    return Heads(query, kv, dim, dim, dim_field="attention_head_dim")


def _shared(fields: Fields, hidden: int, heads: Heads, width: int) -> Weights:
    """A block of attention and MLP."""
    total = attention(2 * hidden, heads, AttentionStyle()) + Weights(matrices=-heads.query * heads.value_dim * hidden)
    return total + mlp(hidden, width, fields.flag("add_bias_linear")) + norms(3 * hidden)


def _adapters(fields: Fields, hidden: int, width: int) -> Weights:
    """Of each layer that uses a shared block: low-rank changes of its projections, and a projection of its result."""
    rank = fields.integer("adapter_rank", absent=128)
    total = linear(hidden, rank) + linear(rank, 2 * width) + linear(hidden, hidden)
    if fields.flag("use_shared_attention_adapter"):
        total += Weights(matrices=3 * 2 * 2 * hidden * rank)
    return total


def read(fields: Fields) -> Blueprint:
    trunk = read_trunk(fields, tied=True)
    kinds, mixer, heads = _kinds(fields, trunk.layers), _mixer(fields, trunk.hidden), _heads(fields, trunk.hidden)
    width, bias = fields.integer("intermediate_size", absent=4 * trunk.hidden), fields.flag("add_bias_linear")
    own = mixer.weights(trunk.hidden, (bias, fields.flag("use_conv_bias", absent=True), bias)) + norms(trunk.hidden)
    left, blocks = fields.integer("num_mem_blocks", absent=1), []
    for kind in kinds:
        if kind == "mamba":
            blocks.append(Block((mixer.memory(),), own))
            continue
        first = _shared(fields, trunk.hidden, heads, width) if left > 0 else Weights()
        weights = own + first + _adapters(fields, trunk.hidden, width)
        blocks.append(Block((full(heads), mixer.memory()), weights))
        left -= 1
    return trunk.blueprint(blocks, query_heads=heads.query, intermediate=max(2 * width, 2 * mixer.inner))


FAMILIES = (
    Family("zamba2", read, {
        "vocab_size": 32000, "max_position_embeddings": 4096, "n_mamba_heads": 8, "mamba_d_state": 64,
        "mamba_d_conv": 4,
    }, ("Zamba2ForCausalLM",)),
)  # fmt: skip
