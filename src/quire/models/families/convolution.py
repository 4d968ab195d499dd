"""LFM2: short convolutions among a few attention layers."""

from __future__ import annotations

from collections.abc import Callable

from quire.core.units import round_up
from quire.models.blueprint import Block, Blueprint, Family, Weights
from quire.models.families.common import read_heads, read_trunk
from quire.models.families.feedforward import FeedForward, mixed, uniform
from quire.models.fields import Fields
from quire.models.memories import columns, full, state
from quire.models.weights import AttentionStyle, attention, experts, linear, mlp, norms, router

_WORDS = {"conv": "conv", "full_attention": "full"}


def _kinds(fields: Fields, layers: int) -> list[str]:
    given = fields.kinds("layer_types", layers, _WORDS)
    indices = fields.integers("full_attn_idxs")
    if given is None and indices is None:
        raise fields.missing("layer_types", "say which layers are conv and which full_attention")
    return given or ["full" if layer in (indices or ()) else "conv" for layer in range(layers)]


def dense(fields: Fields, hidden: int, layers: int) -> FeedForward:
    """The stated width is a third too large until it is adjusted, unless the configuration says it is final."""
    width = fields.integer("block_ff_dim", "intermediate_size")
    fields.raw("block_ff_dim", "intermediate_size")
    multiplier = fields.raw("block_ffn_dim_multiplier")
    multiple = fields.integer("block_multiple_of", absent=256)
    if fields.flag("block_auto_adjust_ff_dim", absent=True):
        scale = float(multiplier) if isinstance(multiplier, int | float) else 1.0
        width = round_up(int(scale * int(2 * width / 3)), multiple)
    return uniform(mlp(hidden, width), layers, width)


def sparse(fields: Fields, hidden: int, layers: int) -> FeedForward:
    count, width = fields.integer("num_experts"), fields.integer("moe_intermediate_size")
    wide, first = fields.integer("intermediate_size"), fields.integer("num_dense_layers", minimum=0)
    moe = experts(hidden, width, count) + router(hidden, count, bias=fields.flag("use_expert_bias", absent=True))
    return mixed(mlp(hidden, wide), moe, [layer >= first for layer in range(layers)], max(width, wide))


def reader(feed_forward: Callable[[Fields, int, int], FeedForward]) -> Callable[[Fields], Blueprint]:
    def read(fields: Fields) -> Blueprint:
        trunk = read_trunk(fields, tied=True)
        heads, hidden = read_heads(fields, trunk.hidden), trunk.hidden
        kinds = _kinds(fields, trunk.layers)
        kernel, bias = fields.integer("conv_L_cache", minimum=2), fields.flag("conv_bias")
        memory = {"full": full(heads), "conv": state(columns("conv", hidden, 1, kernel, f"hidden_size {hidden}"))}
        convolution = linear(hidden, 3 * hidden, bias) + linear(hidden, hidden, bias)
        weights = {
            "full": attention(hidden, heads, AttentionStyle(qk_norm="head")),
            "conv": convolution + Weights(plain=hidden * (kernel + (1 if bias else 0))),
        }
        feed = feed_forward(fields, hidden, trunk.layers)
        blocks = [
            Block((memory[kind],), weights[kind] + ffn + norms(2 * hidden))
            for kind, ffn in zip(kinds, feed.per_layer, strict=True)
        ]
        return trunk.blueprint(blocks, query_heads=heads.query, intermediate=max(feed.width, 3 * hidden))

    return read


_LFM2 = {
    "vocab_size": 65536, "intermediate_size": 12288, "num_key_value_heads": 8, "max_position_embeddings": 128000,
    "conv_L_cache": 3,
}  # fmt: skip

FAMILIES = (
    Family("lfm2", reader(dense), _LFM2, ("Lfm2ForCausalLM",)),
    Family("lfm2_moe", reader(sparse), _LFM2 | {
        "intermediate_size": 7168, "moe_intermediate_size": 1792, "num_experts": 32, "num_dense_layers": 2,
    }, ("Lfm2MoeForCausalLM",)),
)  # fmt: skip
