"""Gated DeltaNet among full attention (Qwen3-Next, Qwen3.5, OLMo Hybrid), and Kimi's delta attention among MLA
(Kimi-Linear)."""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.dtypes import DType
from quire.core.errors import ModelError
from quire.core.memory import Memory
from quire.models.blueprint import Block, Blueprint, Family, Weights
from quire.models.families import feedforward
from quire.models.families.common import must_divide, read_heads, read_trunk
from quire.models.families.latent import read_latent_sizes
from quire.models.families.mixers import state_dtype
from quire.models.fields import Fields
from quire.models.memories import columns, full, latent, recurrent, state
from quire.models.weights import AttentionStyle, attention, draft_glue, latent_attention, linear, norms

_WORDS = {"linear_attention": "delta", "full_attention": "full"}


@dataclass(frozen=True, slots=True)
class GatedDelta:
    keys: int
    values: int
    key_dim: int
    value_dim: int
    kernel: int
    dtype: DType

    def memory(self) -> Memory:
        key, value = f"linear_key_head_dim {self.key_dim}", f"linear_value_head_dim {self.value_dim}"
        values, keys = f"linear_num_value_heads {self.values}", f"linear_num_key_heads {self.keys}"
        return state(
            recurrent("delta", self.values, self.key_dim * self.value_dim, self.dtype, f"{values} × {key} × {value}"),
            columns("conv_qk", self.keys, 2 * self.key_dim, self.kernel, f"{keys} × 2 × {key}"),
            columns("conv_v", self.values, self.value_dim, self.kernel, f"{values} × {value}"),
        )

    def weights(self, hidden: int) -> Weights:
        keys, values = self.keys * self.key_dim, self.values * self.value_dim
        total = linear(hidden, 2 * keys + 2 * values) + linear(hidden, 2 * self.values) + linear(values, hidden)
        return total + Weights(plain=(2 * keys + values) * self.kernel + 2 * self.values, replicated=self.value_dim)


def read_gated_delta(fields: Fields) -> GatedDelta:
    keys, values = fields.integer("linear_num_key_heads"), fields.integer("linear_num_value_heads")
    must_divide(values, keys, "linear_num_value_heads", "linear_num_key_heads", "each key serves equally many")
    key_dim, value_dim = fields.integer("linear_key_head_dim"), fields.integer("linear_value_head_dim")
    kernel = fields.integer("linear_conv_kernel_dim", minimum=2)
    return GatedDelta(keys, values, key_dim, value_dim, kernel, state_dtype(fields))


def _qwen_kinds(fields: Fields, layers: int) -> list[str]:
    given = fields.kinds("layer_types", layers, _WORDS)
    interval = fields.integer("full_attention_interval", absent=4)
    return given or ["delta" if (layer + 1) % interval else "full" for layer in range(layers)]


def _read_qwen(fields: Fields, feed_reader: feedforward.FeedForwardReader) -> Blueprint:
    trunk = read_trunk(fields)
    heads = read_heads(fields, trunk.hidden)
    kinds = _qwen_kinds(fields, trunk.layers)
    feed = feed_reader(fields, trunk.hidden, trunk.layers)
    bias, gated = fields.flag("attention_bias"), fields.flag("attn_output_gate", absent=True)
    weights = {"full": attention(trunk.hidden, heads, AttentionStyle(bias, bias, "head", gated))}
    memory = {"full": full(heads)}
    if "delta" in kinds:
        mixer = read_gated_delta(fields)
        memory["delta"], weights["delta"] = mixer.memory(), mixer.weights(trunk.hidden)
    rest = norms(2 * trunk.hidden)
    blocks = [
        Block((memory[kind],), weights[kind] + ffn + rest) for kind, ffn in zip(kinds, feed.per_layer, strict=True)
    ]
    count = fields.integer("mtp_num_hidden_layers", "num_nextn_predict_layers", absent=0, minimum=0, maximum=64)
    draft = Block((memory["full"],), weights["full"] + feed.sparse + rest + draft_glue(trunk.hidden))
    return trunk.blueprint(blocks, query_heads=heads.query, intermediate=feed.width, drafts=[draft] * count)


def read_qwen_dense(fields: Fields) -> Blueprint:
    return _read_qwen(fields, feedforward.dense)


def read_qwen_moe(fields: Fields) -> Blueprint:
    return _read_qwen(fields, feedforward.qwen_moe)


def _olmo_kinds(fields: Fields, layers: int) -> list[str]:
    """Every fourth layer has attention, and the last one where there are fewer."""
    usual = ["full" if layer % 4 == 3 else "delta" for layer in range(layers)]
    if layers < 4:
        usual[-1] = "full"
    return fields.kinds("layer_types", layers, _WORDS) or usual


def _olmo_mixer(fields: Fields, hidden: int, query: int) -> GatedDelta:
    """As many heads as the attention has, and three quarters of the model's width for keys, unless stated."""
    keys, values = (fields.integer(f"linear_num_{part}_heads", absent=query) for part in ("key", "value"))
    must_divide(values, keys, "linear_num_value_heads", "linear_num_key_heads", "each key serves equally many")
    key_dim = fields.integer("linear_key_head_dim", absent=int(0.75 * hidden / keys))
    value_dim = fields.integer("linear_value_head_dim", absent=2 * key_dim)
    fields.raw("linear_a_log_min", "linear_a_log_max", "linear_dt_min", "linear_dt_max", "linear_dt_init_floor")
    fields.flag("linear_allow_neg_eigval")
    kernel = fields.integer("linear_conv_kernel_dim", absent=4, minimum=2)
    return GatedDelta(keys, values, key_dim, value_dim, kernel, state_dtype(fields))


def read_olmo(fields: Fields) -> Blueprint:
    trunk = read_trunk(fields)
    heads = read_heads(fields, trunk.hidden)
    kinds = _olmo_kinds(fields, trunk.layers)
    feed, bias = feedforward.dense(fields, trunk.hidden, trunk.layers), fields.flag("attention_bias")
    mixer = _olmo_mixer(fields, trunk.hidden, heads.query)
    rest = feed.sparse + norms(2 * trunk.hidden)
    own = {
        "full": Block((full(heads),), attention(trunk.hidden, heads, AttentionStyle(bias, bias, "all")) + rest),
        "delta": Block((mixer.memory(),), mixer.weights(trunk.hidden) + rest),
    }
    return trunk.blueprint([own[kind] for kind in kinds], query_heads=heads.query, intermediate=feed.width)


def _one_based(section: Fields, layers: int) -> list[str] | None:
    """`kda_layers` and `full_attn_layers` count from one and together name every layer once."""
    delta, wide = section.integers("kda_layers", minimum=1), section.integers("full_attn_layers", minimum=1)
    if delta is None or wide is None:
        return None
    if sorted(delta + wide) != list(range(1, layers + 1)):
        stated = f"kda_layers ({len(delta)}) and full_attn_layers ({len(wide)})"
        raise ModelError(f"linear_attn_config: {stated} must name each of layers 1 to {layers} once")
    return ["delta" if layer + 1 in set(delta) else "full" for layer in range(layers)]


def _kimi_kinds(fields: Fields, section: Fields | None, layers: int) -> list[str]:
    listed = fields.kinds("layer_types", layers, _WORDS)
    kinds = (None if section is None else _one_based(section, layers)) or listed
    if kinds is None:
        raise fields.missing("linear_attn_config", "its kda_layers and full_attn_layers say which layers are which")
    if listed is not None and listed != kinds:
        fields.notes.append("layer_types disagrees with linear_attn_config: the latter's lists are used")
    return kinds


def _kda(heads: int, dim: int, kernel: int, dtype: DType) -> Memory:
    wide = f"num_heads {heads} × head_dim {dim}"
    convolutions = (columns(f"conv_{name}", heads, dim, kernel, wide) for name in "qkv")
    return state(recurrent("delta", heads, dim * dim, dtype, f"{wide} × head_dim {dim}"), *convolutions)


def _kda_weights(hidden: int, heads: int, dim: int, kernel: int) -> Weights:
    wide = heads * dim
    total = linear(hidden, 3 * wide + heads) + linear(wide, hidden)
    total += Weights(latent=2 * hidden * dim, matrices=2 * dim * wide)
    return total + Weights(plain=3 * wide * kernel + wide + heads, replicated=dim)


def read_kimi_linear(fields: Fields) -> Blueprint:
    trunk = read_trunk(fields)
    sizes = read_latent_sizes(fields)
    section = fields.section("linear_attn_config")
    kinds = _kimi_kinds(fields, section, trunk.layers)
    source, names = (section, ("num_heads", "head_dim", "short_conv_kernel_size")) if section is not None else (
        fields, ("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
    )  # fmt: skip
    fields.raw("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim", "mla_use_nope")
    heads, dim, kernel = (source.integer(name, minimum=least) for name, least in zip(names, (1, 1, 2), strict=True))
    memory = {"delta": _kda(heads, dim, kernel, state_dtype(fields)), "full": latent(sizes.rank, sizes.rope)}
    weights = {
        "delta": _kda_weights(trunk.hidden, heads, dim, kernel),
        "full": latent_attention(trunk.hidden, sizes, fields.flag("attention_bias")),
    }
    feed = feedforward.deepseek(correction=True)(fields, trunk.hidden, trunk.layers)
    rest = norms(2 * trunk.hidden)
    blocks = [
        Block((memory[kind],), weights[kind] + ffn + rest) for kind, ffn in zip(kinds, feed.per_layer, strict=True)
    ]
    return trunk.blueprint(blocks, query_heads=sizes.heads, intermediate=feed.width)


_DELTA = {
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "head_dim": 256, "max_position_embeddings": 32768,
}  # fmt: skip
_MOE = {"moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "num_experts": 256}
_QWEN3_5 = _DELTA | {"vocab_size": 248320, "num_attention_heads": 16}

FAMILIES = (
    Family("qwen3_next", read_qwen_moe, _DELTA | _MOE | {
        "vocab_size": 151936, "intermediate_size": 5632, "num_experts": 512, "num_key_value_heads": 2,
    }, ("Qwen3NextForCausalLM",)),
    Family("qwen3_5_text", read_qwen_dense, _QWEN3_5 | {"intermediate_size": 12288, "num_key_value_heads": 4},
           ("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration")),
    Family("qwen3_5_moe_text", read_qwen_moe, _QWEN3_5 | _MOE | {"num_key_value_heads": 2},
           ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration")),
    Family("olmo_hybrid", read_olmo, {
        "vocab_size": 100352, "intermediate_size": 11008, "max_position_embeddings": 65536,
    }, ("OlmoHybridForCausalLM",)),
    Family("kimi_linear", read_kimi_linear, {
        "vocab_size": 163840, "intermediate_size": 9216, "moe_intermediate_size": 1024, "kv_lora_rank": 512,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128, "max_position_embeddings": 1048576,
        "num_experts": 256, "first_k_dense_replace": 1,
    }, ("KimiLinearForCausalLM",)),
)  # fmt: skip
