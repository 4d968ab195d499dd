"""Families whose layers all have K/V attention of one geometry, with or without a window, dense or with experts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from quire.models.blueprint import Block, Blueprint, Family, Weights
from quire.models.families import feedforward
from quire.models.families.common import (
    Trunk,
    WindowRule,
    always,
    attention_memories,
    every,
    never,
    qwen,
    qwen2_moe,
    qwen3_moe,
    read_heads,
    read_trunk,
    within_length,
)
from quire.models.fields import Fields
from quire.models.memories import Heads
from quire.models.weights import AttentionStyle, attention, draft_glue, mlp, norms


def plain(_fields: Fields) -> AttentionStyle:
    return AttentionStyle()


def stated_bias(output: bool = True, qk_norm: str = "none", absent: bool = False) -> Callable[[Fields], AttentionStyle]:
    """`attention_bias` decides about biases."""

    def read(fields: Fields) -> AttentionStyle:
        bias = fields.flag("attention_bias", absent)
        return AttentionStyle(bias, bias and output, qk_norm)

    return read


def _internlm3_style(fields: Fields) -> AttentionStyle:
    """Its own spelling says `qkv_bias`."""
    bias = fields.flag("qkv_bias" if fields.raw("qkv_bias") is not None else "attention_bias")
    return AttentionStyle(bias, bias)


def _internlm3_feed(fields: Fields, hidden: int, layers: int) -> feedforward.FeedForward:
    width = fields.integer("intermediate_size")
    bias = fields.flag("bias" if fields.raw("bias") is not None else "mlp_bias")
    return feedforward.uniform(mlp(hidden, width, bias), layers, width)


def qwen2_style(fields: Fields) -> AttentionStyle:
    return AttentionStyle(qkv_bias=fields.flag("qkv_bias", absent=True))


def glm4_moe_style(fields: Fields) -> AttentionStyle:
    qk_norm = "head" if fields.flag("use_qk_norm") else "none"
    return AttentionStyle(qkv_bias=fields.flag("attention_bias"), qk_norm=qk_norm)


def cohere_style(fields: Fields) -> AttentionStyle:
    bias = fields.flag("attention_bias")
    return AttentionStyle(bias, bias, "all" if fields.flag("use_qk_norm") else "none")


def minimax_m2_style(fields: Fields) -> AttentionStyle:
    fields.text("qk_norm_type")
    return AttentionStyle(qk_norm="all" if fields.flag("use_qk_norm", absent=True) else "none")


def same_heads(_fields: Fields, heads: Heads, layers: int) -> list[Heads]:
    return [heads] * layers


def nothing_more(_fields: Fields, _hidden: int, _heads: Heads) -> Weights:
    return Weights()


@dataclass(frozen=True, slots=True)
class Design:
    """How one such family differs from another."""

    style: Callable[[Fields], AttentionStyle] = plain
    windows: WindowRule = never
    feed_forward: feedforward.FeedForwardReader = feedforward.dense
    norms: int = 2
    """Norms of hidden_size in each layer."""
    norm_bias: bool = False
    tied: bool = False
    head_bias: bool = False
    sink_logits: bool = False
    """One learned number a head beside the scores: a weight, not a memory."""
    more: Callable[[Fields, int, Heads], Weights] = nothing_more
    """Of each layer, from hidden_size and heads: what no other field here says."""
    heads: Callable[[Fields, int], Heads] = read_heads
    layer_heads: Callable[[Fields, Heads, int], list[Heads]] = same_heads
    """Of each layer, where they do not all have equally many queries."""
    positions: int | None = None
    """A learned table of positions has this many rows more than the longest sequence; None: there is no table."""

    def read(self, fields: Fields) -> Blueprint:
        trunk = read_trunk(fields, tied=self.tied)
        heads = self.heads(fields, trunk.hidden)
        kinds = self.windows(fields, trunk.layers)
        memories = attention_memories(fields, kinds, heads)
        feed = self.feed_forward(fields, trunk.hidden, trunk.layers)
        norm = trunk.hidden * (2 if self.norm_bias else 1)
        several = self.layer_heads(fields, heads, trunk.layers)
        weights = [self._attention(fields, trunk.hidden, one) + norms(self.norms * norm) for one in several]
        blocks = [Block(kept, own + ffn) for kept, own, ffn in zip(memories, weights, feed.per_layer, strict=True)]
        draft = Block(memories[-1], weights[-1] + feed.sparse + draft_glue(trunk.hidden))
        bias = trunk.vocab if fields.flag("lm_head_bias", self.head_bias) else 0
        return trunk.blueprint(
            blocks, query_heads=max(one.query for one in several), intermediate=feed.width,
            drafts=[draft] * read_drafts(fields), final=norms(norm if self.norms else 0), head_bias=bias,
            more_embeddings=self._positions(trunk),
        )  # fmt: skip

    def _attention(self, fields: Fields, hidden: int, heads: Heads) -> Weights:
        total = attention(hidden, heads, self.style(fields)) + self.more(fields, hidden, heads)
        return total + Weights(plain=heads.query if self.sink_logits else 0)

    def _positions(self, trunk: Trunk) -> int:
        if self.positions is None or trunk.max_length is None:
            return 0
        return (trunk.max_length + self.positions) * trunk.hidden


def read_drafts(fields: Fields) -> int:
    return fields.integer("num_nextn_predict_layers", "num_mtp_layers", absent=0, minimum=0, maximum=64)


def _minimax_m2_kinds(fields: Fields, layers: int) -> list[str]:
    types = fields.per_layer("attn_type_list", layers)
    for i, kind in enumerate(types or ()):
        if kind != 1:
            raise fields.wrong(f"attn_type_list[{i}]", kind, "minimax_m2 has full attention (1) in every layer")
    fields.integer("num_mtp_modules", absent=0, minimum=0)
    return never(fields, layers)


def _smollm3_kinds(fields: Fields, layers: int) -> list[str]:
    """Where a window is asked for, the layers without rotary positions have it."""
    rotary = fields.per_layer("no_rope_layers", layers)
    interval = fields.integer("no_rope_layer_interval", absent=4)
    slides = fields.flag("use_sliding_window") and fields.raw("sliding_window") is not None
    given = fields.raw("layer_types") is not None
    if given or not slides:
        fields.raw("sliding_window")
        return never(fields, layers)
    has_rotary = rotary or [(layer + 1) % interval != 0 for layer in range(layers)]
    return ["full" if flag else "window" for flag in has_rotary]


def family(model_type: str, architecture: str, design: Design, defaults: Mapping[str, int]) -> Family:
    return Family(model_type, design.read, defaults, (architecture,))


_QWEN_MOE = feedforward.qwen_moe
_LLAMA = Design(stated_bias())
_LLAMA_DEFAULTS = {"vocab_size": 32000, "intermediate_size": 11008, "max_position_embeddings": 2048}
_MISTRAL_DEFAULTS = {
    "vocab_size": 32000, "intermediate_size": 14336, "max_position_embeddings": 131072, "sliding_window": 4096,
    "num_key_value_heads": 8,
}  # fmt: skip
_QWEN_DEFAULTS = {
    "vocab_size": 151936, "intermediate_size": 22016, "max_position_embeddings": 32768, "sliding_window": 4096,
    "max_window_layers": 28,
}  # fmt: skip
_MIXTRAL_DEFAULTS = {
    "vocab_size": 32000, "intermediate_size": 14336, "max_position_embeddings": 131072, "num_local_experts": 8,
    "num_key_value_heads": 8,
}  # fmt: skip

FAMILIES = (
    family("llama", "LlamaForCausalLM", _LLAMA, _LLAMA_DEFAULTS),
    family("internlm3", "InternLM3ForCausalLM", Design(_internlm3_style, feed_forward=_internlm3_feed), {
        "vocab_size": 128512, "intermediate_size": 10240, "max_position_embeddings": 32768, "num_key_value_heads": 2,
        "head_dim": 128,
    }),
    family("iquestcoder", "IQuestCoderForCausalLM", _LLAMA, {
        "vocab_size": 76800, "intermediate_size": 27648, "max_position_embeddings": 131072, "num_key_value_heads": 8,
        "head_dim": 128,
    }),
    family("granite", "GraniteForCausalLM", _LLAMA, _LLAMA_DEFAULTS),
    family("mistral", "MistralForCausalLM", Design(windows=always), _MISTRAL_DEFAULTS),
    family("ministral", "MinistralForCausalLM", Design(windows=always), _MISTRAL_DEFAULTS),
    family("ministral3", "Ministral3ForCausalLM", Design(windows=always), {
        "vocab_size": 131072, "intermediate_size": 14336, "max_position_embeddings": 262144, "num_key_value_heads": 8,
        "head_dim": 128,
    }),
    family("mixtral", "MixtralForCausalLM", Design(
        windows=always, feed_forward=feedforward.mixtral,
    ), _MIXTRAL_DEFAULTS),
    family("qwen2", "Qwen2ForCausalLM", Design(qwen2_style, qwen), _QWEN_DEFAULTS),
    family("qwen3", "Qwen3ForCausalLM", Design(stated_bias(qk_norm="head"), qwen), _QWEN_DEFAULTS | {"head_dim": 128}),
    family("qwen2_moe", "Qwen2MoeForCausalLM", Design(qwen2_style, qwen2_moe, _QWEN_MOE), _QWEN_DEFAULTS | {
        "intermediate_size": 5632, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632,
        "num_experts": 60,
    }),
    family("qwen3_moe", "Qwen3MoeForCausalLM", Design(stated_bias(qk_norm="head"), qwen3_moe, _QWEN_MOE), {
        "vocab_size": 151936, "intermediate_size": 6144, "max_position_embeddings": 32768, "sliding_window": 4096,
        "max_window_layers": 0, "moe_intermediate_size": 768, "num_experts": 128, "num_key_value_heads": 4,
    }),
    family("phi3", "Phi3ForCausalLM", Design(windows=within_length), {
        "vocab_size": 32064, "intermediate_size": 8192, "max_position_embeddings": 4096,
    }),
    family("phimoe", "PhimoeForCausalLM", Design(
        stated_bias(), within_length, feedforward.mixtral, norm_bias=True,
    ), _MIXTRAL_DEFAULTS | {"vocab_size": 32064, "intermediate_size": 6400, "num_local_experts": 16}),
    family("gpt_oss", "GptOssForCausalLM", Design(
        stated_bias(absent=True), every(2), feedforward.gpt_oss, sink_logits=True,
    ), {
        "vocab_size": 201088, "intermediate_size": 2880, "max_position_embeddings": 131072, "sliding_window": 128,
        "num_local_experts": 128, "num_key_value_heads": 8, "head_dim": 64,
    }),
    family("olmo2", "Olmo2ForCausalLM", Design(stated_bias(qk_norm="all")), _LLAMA_DEFAULTS | {"vocab_size": 50304}),
    family("olmo3", "Olmo3ForCausalLM", Design(stated_bias(qk_norm="all"), every(4)), _LLAMA_DEFAULTS | {
        "vocab_size": 50304, "sliding_window": 4096,
    }),
    family("exaone4", "Exaone4ForCausalLM", Design(lambda _: AttentionStyle(qk_norm="head"), every(4)), {
        "vocab_size": 102400, "intermediate_size": 16384, "max_position_embeddings": 2048, "sliding_window": 4096,
    }),
    family("cohere", "CohereForCausalLM", Design(cohere_style, norms=1, tied=True), {
        "vocab_size": 256000, "intermediate_size": 22528, "max_position_embeddings": 8192,
    }),
    family("cohere2", "Cohere2ForCausalLM", Design(stated_bias(), every(4), norms=1, tied=True), {
        "vocab_size": 256000, "intermediate_size": 22528, "max_position_embeddings": 8192, "sliding_window": 4096,
    }),
    family("smollm3", "SmolLM3ForCausalLM", Design(stated_bias(), _smollm3_kinds, tied=True), {
        "vocab_size": 128256, "intermediate_size": 11008, "max_position_embeddings": 32768, "num_key_value_heads": 4,
    }),
    family("glm4", "Glm4ForCausalLM", Design(stated_bias(output=False, absent=True), norms=4), {
        "vocab_size": 151552, "intermediate_size": 13696, "max_position_embeddings": 131072, "head_dim": 128,
        "num_key_value_heads": 2,
    }),
    family("glm4_moe", "Glm4MoeForCausalLM", Design(glm4_moe_style, feed_forward=feedforward.deepseek(True)), {
        "vocab_size": 151552, "intermediate_size": 10944, "max_position_embeddings": 131072, "num_key_value_heads": 8,
        "moe_intermediate_size": 1408, "n_routed_experts": 128, "first_k_dense_replace": 1,
    }),
    family("minimax_m2", "MiniMaxM2ForCausalLM", Design(
        minimax_m2_style, _minimax_m2_kinds, feedforward.minimax_m2,
    ), {
        "vocab_size": 200064, "intermediate_size": 1536, "max_position_embeddings": 196608, "num_local_experts": 256,
        "num_key_value_heads": 8, "head_dim": 128,
    }),
)  # fmt: skip
