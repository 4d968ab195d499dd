"""MiniMax-Text-01: lightning (linear) attention, full attention every eighth layer, experts in all."""

from __future__ import annotations

from quire.models.blueprint import Block, Blueprint, Family, Weights
from quire.models.families import feedforward
from quire.models.families.common import read_heads, read_trunk
from quire.models.families.mixers import state_dtype
from quire.models.fields import Fields
from quire.models.memories import full, recurrent, state
from quire.models.weights import AttentionStyle, attention, linear, norms

_WORDS = {"linear_attention": "linear", "full_attention": "full"}


def _kinds(fields: Fields, layers: int) -> list[str]:
    listed = fields.kinds("layer_types", layers, _WORDS)
    numbers = fields.per_layer("attn_type_list", layers)
    for i, kind in enumerate(numbers or ()):
        if kind not in (0, 1):
            raise fields.wrong(f"attn_type_list[{i}]", kind, "0 is linear attention, 1 is full attention")
    spelled = ["full" if kind else "linear" for kind in numbers] if numbers is not None else None
    if listed is None and spelled is None:
        raise fields.missing("attn_type_list", "say which layers are linear (0) and which full (1)")
    if listed is not None and spelled is not None and listed != spelled:
        raise fields.wrong("attn_type_list", numbers, "it disagrees with layer_types, keep the one that is right")
    return listed or spelled or []


def _no_shared_experts(fields: Fields) -> None:
    stated = fields.raw("shared_intermediate_size")
    widths = stated if isinstance(stated, list) else [stated]
    if any(width not in (None, 0) for width in widths):
        raise fields.wrong("shared_intermediate_size", stated, "shared experts are not known for this family")


def read(fields: Fields) -> Blueprint:
    trunk = read_trunk(fields)
    heads = read_heads(fields, trunk.hidden)
    kinds = _kinds(fields, trunk.layers)
    _no_shared_experts(fields)
    fields.optional_integer("sliding_window")
    feed = feedforward.mixtral(fields, trunk.hidden, trunk.layers)
    wide = heads.query * heads.key_dim
    origin = f"num_attention_heads {heads.query} × head_dim {heads.key_dim} × head_dim {heads.key_dim}"
    matrix = recurrent("linear", heads.query, heads.key_dim**2, state_dtype(fields), origin)
    memory = {"full": full(heads), "linear": state(matrix)}
    weights = {
        "full": attention(trunk.hidden, heads, AttentionStyle()),
        "linear": linear(trunk.hidden, 4 * wide) + linear(wide, trunk.hidden) + Weights(plain=wide),
    }
    blocks = [Block((memory[kind],), weights[kind] + feed.sparse + norms(2 * trunk.hidden)) for kind in kinds]
    return trunk.blueprint(blocks, query_heads=heads.query, intermediate=max(feed.width, 4 * wide))


_MINIMAX = {
    "vocab_size": 32000, "intermediate_size": 14336, "max_position_embeddings": 131072, "num_local_experts": 8,
    "num_key_value_heads": 8,
}  # fmt: skip

FAMILIES = (
    Family("minimax", read, _MINIMAX, ("MiniMaxForCausalLM",)),
    Family("minimax_text_01", read, _MINIMAX, ("MiniMaxText01ForCausalLM",)),
)  # fmt: skip
