"""Llama 4: layers with rotary positions see their own chunk, the others see everything."""

from __future__ import annotations

from quire.core.memory import Memory
from quire.models.blueprint import Block, Blueprint, Family
from quire.models.families.common import read_heads, read_trunk
from quire.models.fields import Fields
from quire.models.memories import Heads, chunked, full
from quire.models.weights import AttentionStyle, attention, experts, mlp, norms, router

_WORDS = {"chunked_attention": "chunked", "full_attention": "full"}


def _kinds(fields: Fields, layers: int) -> list[str]:
    given = fields.kinds("layer_types", layers, _WORDS)
    rotary = fields.per_layer("no_rope_layers", layers) if fields.raw("no_rope_layers") else None
    interval = fields.integer("no_rope_layer_interval", absent=4)
    for i, flag in enumerate(rotary or ()):
        if flag not in (0, 1):
            raise fields.wrong(f"no_rope_layers[{i}]", flag, "1 keeps rotary positions (chunked), 0 drops them (full)")
    flags = rotary or [(layer + 1) % interval != 0 for layer in range(layers)]
    return given or ["chunked" if flag else "full" for flag in flags]


def _memories(fields: Fields, kinds: list[str], heads: Heads) -> list[tuple[Memory, ...]]:
    """A null `attention_chunk_size` switches chunks off."""
    wide = (full(heads),)
    stated_off = "attention_chunk_size" in fields.config and fields.raw("attention_chunk_size") is None
    if "chunked" not in kinds or stated_off:
        return [wide] * len(kinds)
    narrow = (chunked(heads, fields.integer("attention_chunk_size")),)
    return [narrow if kind == "chunked" else wide for kind in kinds]


def _sparse_layers(fields: Fields, layers: int) -> set[int]:
    step = fields.integer("interleave_moe_layer_step", absent=1, minimum=0)
    given = fields.integers("moe_layers")
    if given is not None:
        return set(given)
    return set(range(step - 1, layers, step)) if step else set()


def read(fields: Fields) -> Blueprint:
    trunk = read_trunk(fields)
    heads = read_heads(fields, trunk.hidden)
    memories = _memories(fields, _kinds(fields, trunk.layers), heads)
    bias, width = fields.flag("attention_bias"), fields.integer("intermediate_size")
    sparse, count = _sparse_layers(fields, trunk.layers), fields.integer("num_local_experts")
    moe = experts(trunk.hidden, width, count) + mlp(trunk.hidden, width) + router(trunk.hidden, count)
    wide = fields.integer("intermediate_size_mlp") if len(sparse) < trunk.layers else width
    fields.raw("intermediate_size_mlp")
    fields.flag("use_qk_norm")
    shared = attention(trunk.hidden, heads, AttentionStyle(bias, bias)) + norms(2 * trunk.hidden)
    blocks = [
        Block(memory, shared + (moe if layer in sparse else mlp(trunk.hidden, wide)))
        for layer, memory in enumerate(memories)
    ]
    return trunk.blueprint(blocks, query_heads=heads.query, intermediate=max(width, wide))


FAMILIES = (
    Family("llama4_text", read, {
        "vocab_size": 202048, "intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_attention_heads": 40,
        "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072, "num_local_experts": 16,
        "attention_chunk_size": 8192,
    }, ("Llama4ForCausalLM", "Llama4ForConditionalGeneration")),
)  # fmt: skip
