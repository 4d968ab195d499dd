"""MiMo-V2-Flash: layers with a window have twice the K/V heads of the others, and one sink logit a head."""

from __future__ import annotations

from dataclasses import replace

from quire.models.blueprint import Block, Blueprint, Family, Weights
from quire.models.families.common import WINDOW_WORDS, must_be, read_heads, read_trunk
from quire.models.families.feedforward import deepseek
from quire.models.fields import Fields
from quire.models.memories import Heads, full, windowed
from quire.models.weights import AttentionStyle, attention, norms


def _kinds(fields: Fields, layers: int) -> list[str]:
    """The first layer and every sixth are full. A list of numbers says the same: 0 is full, 1 has the window."""
    usual = ["full" if layer == 0 or (layer + 1) % 6 == 0 else "window" for layer in range(layers)]
    given = fields.kinds("layer_types", layers, WINDOW_WORDS)
    numbers = fields.per_layer("hybrid_layer_pattern", layers)
    kinds = given or usual
    if numbers is not None and numbers != [int(kind == "window") for kind in kinds]:
        raise fields.wrong("hybrid_layer_pattern", numbers, "transformers reads layer_types alone, state them")
    return kinds


def _window(fields: Fields) -> int:
    """`sliding_window_size` counts the tokens before the query's own."""
    stated, before = fields.integer("sliding_window"), fields.optional_integer("sliding_window_size")
    window = stated if before is None else before + 1
    if fields.raw("attention_chunk_size") not in (None, stated, before):
        raise fields.wrong("attention_chunk_size", fields.raw("attention_chunk_size"), "a chunk is not known here")
    return window


def _heads(fields: Fields, hidden: int) -> tuple[Heads, Heads]:
    """Of full layers, and of layers with the window."""
    wide = replace(read_heads(fields, hidden), value_dim=fields.integer("v_head_dim"))
    narrow = replace(wide, kv=2 * wide.kv, kv_field="2 × num_key_value_heads")
    numbers = {"num_attention_heads": wide.query, "num_key_value_heads": narrow.kv, "head_dim": wide.key_dim}
    for name, value in {**numbers, "v_head_dim": wide.value_dim}.items():
        must_be(fields, f"swa_{name}", value)
    must_be(fields, "add_swa_attention_sink_bias", True)
    must_be(fields, "add_full_attention_sink_bias", False)
    return wide, narrow


def read(fields: Fields) -> Blueprint:
    trunk = read_trunk(fields)
    kinds = _kinds(fields, trunk.layers)
    wide, narrow = _heads(fields, trunk.hidden)
    bias = fields.flag("attention_bias")
    frequencies = fields.raw("moe_layer_freq")
    if isinstance(frequencies, list):  # the published configuration lists what mlp_layer_types says
        fields.config = {**fields.config, "moe_layer_freq": None}
        if frequencies != [0] + [1] * (trunk.layers - 1):
            raise fields.wrong("moe_layer_freq", frequencies, "all layers but the first have experts")
    feed = deepseek(True)(fields, trunk.hidden, trunk.layers)
    own = {
        kind: attention(trunk.hidden, heads, AttentionStyle(qkv_bias=bias)) + norms(2 * trunk.hidden)
        for kind, heads in (("full", wide), ("window", narrow))
    }
    own["window"] += Weights(plain=narrow.query)
    memory = {"full": full(wide), "window": windowed(narrow, _window(fields))}
    blocks = [Block((memory[kind],), own[kind] + ffn) for kind, ffn in zip(kinds, feed.per_layer, strict=True)]
    return trunk.blueprint(blocks, query_heads=wide.query, intermediate=feed.width)


FAMILIES = (
    Family("mimo_v2_flash", read, {
        "vocab_size": 152576, "intermediate_size": 16384, "moe_intermediate_size": 2048, "n_routed_experts": 256,
        "max_position_embeddings": 131072, "num_key_value_heads": 4, "head_dim": 192, "v_head_dim": 128,
        "sliding_window": 129, "first_k_dense_replace": 1,
    }, ("MiMoV2FlashForCausalLM",)),
)  # fmt: skip
