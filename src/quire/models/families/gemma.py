"""Gemma 2, 3, 3n and 4: windows between full layers; from 3n on, late layers read an earlier layer's K/V."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from quire.core.errors import ModelError
from quire.models.blueprint import Block, Blueprint, Family, Weights
from quire.models.families.attention import Design, stated_bias
from quire.models.families.common import Trunk, WindowRule, every, read_heads, read_trunk, read_window
from quire.models.fields import Fields
from quire.models.memories import Heads, full, windowed
from quire.models.weights import AttentionStyle, attention, experts, mlp, norms, router


def causal(rule: WindowRule) -> WindowRule:
    """Refuses the encoder variants: they keep nothing between tokens."""

    def checked(fields: Fields, layers: int) -> list[str]:
        direction = fields.raw("use_bidirectional_attention")
        if direction is True or direction == "all":
            raise fields.wrong("use_bidirectional_attention", direction, "an encoder has no KV cache to plan")
        return rule(fields, layers)

    return checked


def sharing(fields: Fields, kinds: Sequence[str]) -> list[int | None]:
    """The last `num_kv_shared_layers` layers read the last earlier layer of their own kind."""
    shared = fields.integer("num_kv_shared_layers", absent=fields.defaults.get("num_kv_shared_layers", 0), minimum=0)
    first = len(kinds) - shared
    if first < 1 and shared:
        raise ModelError(f"num_kv_shared_layers is {shared}: at most {len(kinds) - 1} of {len(kinds)} layers can share")
    sources: list[int | None] = [None] * first
    for layer in range(first, len(kinds)):
        source = max((i for i in range(first) if kinds[i] == kinds[layer]), default=None)
        if source is None:
            raise ModelError(f"num_kv_shared_layers is {shared}: layer {layer} has no earlier {kinds[layer]} layer")
        sources.append(source)
    return sources


def per_layer_inputs(hidden: int, width: int) -> Weights:
    """Each layer mixes in its own small embedding of the token."""
    return Weights(latent=2 * hidden * width, replicated=hidden)


def read_gemma3n(fields: Fields) -> Blueprint:
    trunk = read_trunk(fields, tied=True)
    heads = read_heads(fields, trunk.hidden)
    kinds = causal(every(5))(fields, trunk.layers)
    window = read_window(fields, kinds.count("window")) if "window" in kinds else None
    widths = _widths(fields, trunk.layers)
    inputs, rank = fields.integer("altup_num_inputs"), fields.integer("laurel_rank")
    small = fields.integer("hidden_size_per_layer_input")
    bias = fields.flag("attention_bias")
    shared = norms(5 * trunk.hidden) + per_layer_inputs(trunk.hidden, small)
    shared += Weights(latent=2 * trunk.hidden * rank, replicated=2 * trunk.hidden)
    shared += Weights(replicated=inputs**2 + inputs**3 + inputs * trunk.hidden)
    blocks = []
    for kind, source, width in zip(kinds, sharing(fields, kinds), widths, strict=True):
        weights = _projections(trunk.hidden, heads, bias, False, source is not None)
        weights += shared + mlp(trunk.hidden, width)
        own = (full(heads) if window is None or kind == "full" else windowed(heads, window),)
        blocks.append(Block(() if source is not None else own, weights, source))
    altup = Weights(latent=2 * (inputs - 1) * trunk.hidden**2)
    return _with_small_embeddings(fields, trunk, blocks, heads, max(widths), small, altup)


def _widths(fields: Fields, layers: int) -> list[int]:
    if isinstance(fields.raw("intermediate_size"), list | tuple):
        fields.per_layer("intermediate_size", layers)
        return fields.integers("intermediate_size", minimum=1) or []
    return [fields.integer("intermediate_size")] * layers


def _with_small_embeddings(
    fields: Fields, trunk: Trunk, blocks: list[Block], heads: Heads, width: int, small: int, more: Weights
) -> Blueprint:
    final, table = norms(trunk.hidden) + more, 0
    if small:
        table = fields.integer("vocab_size_per_layer_input") * trunk.layers * small
        final += Weights(latent=trunk.hidden * trunk.layers * small, replicated=small)
    return trunk.blueprint(blocks, query_heads=heads.query, intermediate=width, final=final, more_embeddings=table)


def _global_heads(fields: Fields, local: Heads) -> Heads:
    """Full layers have wider heads, and fewer K/V heads where K and V share a projection."""
    dim = fields.integer("global_head_dim")
    stated = fields.optional_integer("num_global_key_value_heads")
    if stated is not None and fields.flag("attention_k_eq_v"):
        return Heads(local.query, stated, dim, dim, "num_global_key_value_heads", "global_head_dim")
    return replace(local, key_dim=dim, value_dim=dim, dim_field="global_head_dim")


def _projections(hidden: int, heads: Heads, bias: bool, shared_projection: bool, reads_other: bool) -> Weights:
    """A layer that reads another's K/V has no projections for them; where K and V share one, there is no second."""
    total = attention(hidden, heads, AttentionStyle(bias, bias, "head"))
    missing = 2 if reads_other else 1 if shared_projection else 0
    removed = missing * heads.kv * heads.key_dim
    norm = heads.key_dim if reads_other else 0
    return total + Weights(matrices=-removed * hidden, plain=-removed if bias else 0, replicated=-norm)


def _gemma4_experts(fields: Fields, hidden: int) -> tuple[Weights, int]:
    if not fields.flag("enable_moe_block"):
        fields.raw("num_experts", "moe_intermediate_size", "top_k_experts")
        return Weights(), 0
    count, width = fields.integer("num_experts"), fields.integer("moe_intermediate_size", "expert_intermediate_size")
    scales = Weights(replicated=hidden + count)
    return experts(hidden, width, count) + router(hidden, count) + scales + norms(3 * hidden), width


def _layer_heads(fields: Fields, kinds: Sequence[str], local: Heads) -> list[Heads]:
    """By kind, or layer by layer where the configuration lists what differs from its own head_dim and K/V heads."""
    section = fields.section("per_layer_config")
    if section is None:
        wide = _global_heads(fields, local)
        return [wide if kind == "full" else local for kind in kinds]
    fields.raw("global_head_dim", "num_global_key_value_heads")
    heads = [local] * len(kinds)
    for key, value in section.config.items():
        if not key.isdecimal() or int(key) >= len(kinds):
            raise section.wrong(key, value, f"its name must be the number of a layer, 0 to {len(kinds) - 1}")
        heads[int(key)] = _overridden(section, key, local)
    return heads


def _overridden(section: Fields, key: str, local: Heads) -> Heads:
    one = section.section(key)
    if one is None:
        return local
    dim = one.integer("head_dim", absent=local.key_dim)
    heads = Heads(local.query, one.integer("num_key_value_heads", absent=local.kv), dim, dim)
    for name, value in one.unread().items():
        raise one.wrong(name, value, "only head_dim and num_key_value_heads of a single layer are known")
    return heads


def _gemma4_rest(fields: Fields, hidden: int, small: int) -> tuple[Weights, int]:
    """What all layers have alike besides attention and MLP, and the experts' width."""
    moe, width = _gemma4_experts(fields, hidden)
    return norms(4 * hidden) + moe + (per_layer_inputs(hidden, small) if small else Weights()), width


def read_gemma4(fields: Fields) -> Blueprint:
    trunk = read_trunk(fields, tied=True)
    local = read_heads(fields, trunk.hidden)
    kinds = causal(every(6))(fields, trunk.layers)
    kinds[-1] = "full"
    window = read_window(fields, kinds.count("window")) if "window" in kinds else None
    one_projection, bias = fields.flag("attention_k_eq_v"), fields.flag("attention_bias")
    width, double = fields.integer("intermediate_size"), fields.flag("use_double_wide_mlp")
    small = fields.integer("hidden_size_per_layer_input", minimum=0) if "unified" not in fields.family else 0
    rest, moe_width = _gemma4_rest(fields, trunk.hidden, small)
    blocks = []
    for kind, heads, source in zip(kinds, _layer_heads(fields, kinds, local), sharing(fields, kinds), strict=True):
        reads_other = source is not None
        own = (full(heads) if window is None or kind == "full" else windowed(heads, window),)
        weights = _projections(trunk.hidden, heads, bias, one_projection and kind == "full", reads_other)
        weights += mlp(trunk.hidden, width * (2 if double and reads_other else 1)) + rest
        blocks.append(Block(() if reads_other else own, weights, source))
    widest = max(width * (2 if double else 1), moe_width)
    return _with_small_embeddings(fields, trunk, blocks, local, widest, small, Weights())


_GEMMA3 = {
    "vocab_size": 262208, "intermediate_size": 9216, "max_position_embeddings": 131072, "sliding_window": 4096,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
}  # fmt: skip
_GEMMA2_DESIGN = Design(stated_bias(), causal(every(2)), norms=4, tied=True)
_GEMMA3_DESIGN = Design(stated_bias(qk_norm="head"), causal(every(6)), norms=4, tied=True)

FAMILIES = (
    Family("gemma2", _GEMMA2_DESIGN.read, _GEMMA3 | {
        "vocab_size": 256000, "max_position_embeddings": 8192,
    }, ("Gemma2ForCausalLM",)),
    Family("gemma3_text", _GEMMA3_DESIGN.read, _GEMMA3, ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration")),
    Family("gemma3n_text", read_gemma3n, _GEMMA3 | {
        "vocab_size": 262400, "intermediate_size": 16384, "max_position_embeddings": 32768, "sliding_window": 512,
        "num_key_value_heads": 2, "num_kv_shared_layers": 15, "hidden_size_per_layer_input": 256, "laurel_rank": 64,
        "vocab_size_per_layer_input": 262144, "altup_num_inputs": 4,
    }, ("Gemma3nForCausalLM", "Gemma3nForConditionalGeneration")),
    Family("gemma4_text", read_gemma4, _GEMMA3 | {
        "vocab_size": 262144, "sliding_window": 512, "global_head_dim": 512, "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 262144,
    }, ("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration")),
    Family("gemma4_unified_text", read_gemma4, _GEMMA3 | {
        "vocab_size": 262144, "sliding_window": 1024, "global_head_dim": 512, "max_position_embeddings": 262144,
    }, ("Gemma4UnifiedForCausalLM", "Gemma4UnifiedForConditionalGeneration")),
)  # fmt: skip
