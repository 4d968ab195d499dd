"""Attention layers among Mamba-2 layers, or both in one layer: Bamba, Granite 4, Falcon-H1."""

from __future__ import annotations

from quire.core.memory import Memory
from quire.models.blueprint import Block, Blueprint, Family, Weights
from quire.models.families.common import Trunk, read_heads, read_trunk
from quire.models.families.mixers import Mamba2, read_mamba2
from quire.models.fields import Fields
from quire.models.memories import Heads, full
from quire.models.weights import AttentionStyle, attention, experts, mlp, norms, router

WORDS = {
    "mamba": "mamba", "mamba2": "mamba", "linear_attention": "mamba", "attention": "full", "full_attention": "full",
}  # fmt: skip


def layer_kinds(fields: Fields, layers: int) -> list[str] | None:
    return fields.kinds("layer_types", layers, WORDS) or fields.kinds("layers_block_type", layers, WORDS)


def _mixer_weights(fields: Fields, trunk: Trunk, mixer: Mamba2, out_bias: str = "mamba_proj_bias") -> Weights:
    biases = fields.flag("mamba_proj_bias"), fields.flag("mamba_conv_bias", absent=True), fields.flag(out_bias)
    gated_norm = fields.family != "falcon_h1" or fields.flag("mamba_rms_norm")
    return mixer.weights(trunk.hidden, biases, gated_norm)


def _attention_weights(fields: Fields, trunk: Trunk, heads: Heads) -> Weights:
    bias = fields.flag("attention_bias")
    return attention(trunk.hidden, heads, AttentionStyle(bias, bias))


def _expanded(fields: Fields, trunk: Trunk) -> int:
    return fields.integer("mamba_expand", absent=2) * trunk.hidden


def _alternating(fields: Fields, trunk: Trunk, kinds: list[str], heads: Heads, rest: Weights, width: int) -> Blueprint:
    memory: dict[str, tuple[Memory, ...]] = {"full": (full(heads),)}
    weights = {"full": _attention_weights(fields, trunk, heads) + rest}
    if "mamba" in kinds:
        mixer = read_mamba2(fields, trunk.hidden, _expanded(fields, trunk))
        memory["mamba"] = (mixer.memory(),)
        weights["mamba"] = _mixer_weights(fields, trunk, mixer) + rest
        width = max(width, 2 * mixer.inner)
    blocks = [Block(memory[kind], weights[kind]) for kind in kinds]
    return trunk.blueprint(blocks, query_heads=heads.query, intermediate=width)


def read_bamba(fields: Fields) -> Blueprint:
    trunk = read_trunk(fields)
    heads = read_heads(fields, trunk.hidden)
    indices = fields.integers("attn_layer_indices")
    kinds = layer_kinds(fields, trunk.layers)
    if kinds is None and indices is None:
        raise fields.missing("attn_layer_indices", "list the layers with attention, or give layer_types")
    if kinds is None:
        kinds = ["full" if layer in (indices or ()) else "mamba" for layer in range(trunk.layers)]
    width = fields.integer("intermediate_size")
    rest = mlp(trunk.hidden, width, fields.flag("mlp_bias")) + norms(2 * trunk.hidden)
    return _alternating(fields, trunk, kinds, heads, rest, width)


def read_granite(fields: Fields) -> Blueprint:
    trunk = read_trunk(fields)
    kinds = layer_kinds(fields, trunk.layers)
    if kinds is None:
        raise fields.missing("layer_types", "say which layers are mamba and which attention, releases differ")
    if "full" in kinds and fields.raw("num_key_value_heads") is None:
        raise fields.missing("num_key_value_heads", "layer_types has attention layers, state their K/V heads")
    heads = read_heads(fields, trunk.hidden)
    count = fields.integer("num_local_experts", minimum=0)
    shared = fields.integer("shared_intermediate_size")
    rest, width = mlp(trunk.hidden, shared) + norms(2 * trunk.hidden), shared
    fields.raw("intermediate_size")
    if count:
        wide = fields.integer("intermediate_size")
        rest += experts(trunk.hidden, wide, count) + router(trunk.hidden, count)
        width = max(width, wide)
    return _alternating(fields, trunk, kinds, heads, rest, width)


def read_falcon(fields: Fields) -> Blueprint:
    """Attention and mixer run side by side in every layer."""
    trunk = read_trunk(fields)
    heads = read_heads(fields, trunk.hidden)
    words = {"hybrid_parallel": "both", "hybrid": "both", "attention": "both", "full_attention": "both"}
    fields.kinds("layer_types", trunk.layers, words)
    fields.kinds("layers_block_type", trunk.layers, words)
    inner = fields.optional_integer("mamba_d_ssm") or _expanded(fields, trunk)
    fields.raw("mamba_expand")
    mixer = read_mamba2(fields, trunk.hidden, inner)
    width = fields.integer("intermediate_size")
    weights = _mixer_weights(fields, trunk, mixer, out_bias="projectors_bias")
    weights += _attention_weights(fields, trunk, heads) + mlp(trunk.hidden, width, fields.flag("mlp_bias"))
    block = Block((full(heads), mixer.memory()), weights + norms(2 * trunk.hidden))
    return trunk.blueprint([block] * trunk.layers, query_heads=heads.query, intermediate=max(width, 2 * inner))


_MAMBA = {"mamba_n_heads": 128, "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4}
_BAMBA = _MAMBA | {"vocab_size": 128000, "intermediate_size": 14336, "num_key_value_heads": 8}

FAMILIES = (
    Family("bamba", read_bamba, _BAMBA | {"max_position_embeddings": 262144}, ("BambaForCausalLM",)),
    Family("falcon_h1", read_falcon, _BAMBA | {"max_position_embeddings": 8192}, ("FalconH1ForCausalLM",)),
    Family("granitemoehybrid", read_granite, _MAMBA | {
        "vocab_size": 32000, "intermediate_size": 11008, "shared_intermediate_size": 1024, "num_local_experts": 8,
        "max_position_embeddings": 2048,
    }, ("GraniteMoeHybridForCausalLM",)),
)  # fmt: skip
