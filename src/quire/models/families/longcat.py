"""LongCat-Flash: two latent attentions in each layer, and experts of which some do nothing."""

from __future__ import annotations

from quire.core.errors import ModelError
from quire.models.blueprint import Block, Blueprint, Family, Weights
from quire.models.families.common import Trunk, read_length, read_tied
from quire.models.families.latent import read_latent_sizes
from quire.models.fields import MOST_LAYERS, Fields
from quire.models.memories import latent
from quire.models.weights import experts, latent_attention, linear, mlp, norms


def _layers(fields: Fields) -> int:
    """`num_layers` counts pairs, `num_hidden_layers` attentions."""
    pairs, both = fields.optional_integer("num_layers"), fields.optional_integer("num_hidden_layers")
    if pairs is None and both is None:
        raise fields.missing("num_layers", "add it to the configuration, longcat_flash has no value for it")
    count = 2 * pairs if pairs is not None else both or 0
    if count % 2 or both not in (None, count, pairs) or count > MOST_LAYERS:
        raise ModelError(f"num_layers {pairs} and num_hidden_layers {both}: every layer has two attentions")
    return count


def _experts(fields: Fields, hidden: int, width: int) -> Weights:
    """The router knows experts that do nothing; no checkpoint has weights of them."""
    count, idle = fields.integer("n_routed_experts"), fields.integer("zero_expert_num", minimum=0)
    route = linear(hidden, count + idle, fields.flag("router_bias"))
    return experts(hidden, width, count) + Weights(replicated=route.total + count + idle)


def read(fields: Fields) -> Blueprint:
    layers, hidden = _layers(fields), fields.integer("hidden_size")
    trunk = Trunk(layers, hidden, fields.integer("vocab_size"), read_tied(fields, False), read_length(fields, True))
    sizes = read_latent_sizes(fields)
    if sizes.query_rank is None:
        raise fields.missing("q_lora_rank", "longcat_flash projects queries through a latent, state its width")
    wide = fields.integer("ffn_hidden_size", "intermediate_size")
    width = fields.integer("expert_ffn_hidden_size", "moe_intermediate_size")
    one = latent_attention(hidden, sizes, fields.flag("attention_bias")) + mlp(hidden, wide) + norms(2 * hidden)
    fields.raw("attention_method", "mla_scale_q_lora", "mla_scale_kv_lora")
    memory = (latent(sizes.rank, sizes.rope),)
    pair = [Block(memory, one + _experts(fields, hidden, width)), Block(memory, one)]
    return trunk.blueprint(pair * (layers // 2), query_heads=sizes.heads, intermediate=max(wide, width))


FAMILIES = (
    Family("longcat_flash", read, {
        "vocab_size": 131072, "ffn_hidden_size": 12288, "expert_ffn_hidden_size": 2048, "n_routed_experts": 512,
        "zero_expert_num": 256, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "qk_nope_head_dim": 128, "max_position_embeddings": 131072,
    }, ("LongcatFlashForCausalLM",)),
)  # fmt: skip
