"""Jamba: Mamba-1 layers, attention every eighth layer, experts every second."""

from __future__ import annotations

from quire.core.errors import ModelError
from quire.models.blueprint import Block, Blueprint, Family
from quire.models.families.common import read_heads, read_trunk
from quire.models.families.hybrid import layer_kinds
from quire.models.families.mixers import inner_norms, read_mamba1
from quire.models.fields import Fields
from quire.models.memories import full
from quire.models.weights import AttentionStyle, attention, experts, mlp, norms, router


def _periodic(fields: Fields, stem: str, layers: int) -> list[bool]:
    period = fields.integer(f"{stem}_layer_period")
    offset = fields.integer(f"{stem}_layer_offset", minimum=0)
    return [layer % period == offset for layer in range(layers)]


def _kinds(fields: Fields, layers: int) -> list[str]:
    given = layer_kinds(fields, layers)
    stated = given is None or fields.raw("attn_layer_period") is not None
    periodic = ["full" if flag else "mamba" for flag in _periodic(fields, "attn", layers)] if stated else given
    if given is not None and given != periodic:
        raise ModelError("layer_types disagrees with attn_layer_period and attn_layer_offset: keep the right one")
    return given or periodic or []


def read(fields: Fields) -> Blueprint:
    trunk = read_trunk(fields)
    heads = read_heads(fields, trunk.hidden)
    kinds = _kinds(fields, trunk.layers)
    inner = fields.integer("mamba_expand", absent=2) * trunk.hidden
    mixer = read_mamba1(fields, trunk.hidden, inner, ("mamba_d_state", "mamba_d_conv", "mamba_dt_rank"))
    bias, conv_bias = fields.flag("mamba_proj_bias"), fields.flag("mamba_conv_bias", absent=True)
    width, count = fields.integer("intermediate_size"), fields.integer("num_experts", "num_local_experts")
    sparse = experts(trunk.hidden, width, count) + router(trunk.hidden, count)
    dense = mlp(trunk.hidden, width)
    memory = {"full": full(heads), "mamba": mixer.memory("mamba_expand × hidden_size", "mamba_d_state")}
    weights = {
        "full": attention(trunk.hidden, heads, AttentionStyle()),
        "mamba": mixer.weights(trunk.hidden, bias, conv_bias) + inner_norms(mixer),
    }
    has_experts = [count > 1 and flag for flag in _periodic(fields, "expert", trunk.layers)]
    blocks = [
        Block((memory[kind],), weights[kind] + (sparse if flag else dense) + norms(2 * trunk.hidden))
        for kind, flag in zip(kinds, has_experts, strict=True)
    ]
    return trunk.blueprint(blocks, query_heads=heads.query, intermediate=max(width, 2 * inner))


FAMILIES = (
    Family("jamba", read, {
        "vocab_size": 65536, "intermediate_size": 14336, "max_position_embeddings": 262144, "num_key_value_heads": 8,
        "mamba_d_state": 16, "mamba_d_conv": 4, "num_experts": 16, "attn_layer_period": 8, "attn_layer_offset": 4,
        "expert_layer_period": 2, "expert_layer_offset": 1,
    }, ("JambaForCausalLM",)),
)  # fmt: skip
