"""Families with experts beside Mixtral's and Qwen's: shared experts, dense layers first, gated attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from quire.models.blueprint import Weights
from quire.models.families.attention import Design, family, plain, stated_bias
from quire.models.families.common import WINDOW_WORDS, every, must_divide, never, qwen
from quire.models.families.dense import first_full, use_bias
from quire.models.families.feedforward import (
    EXPERTS,
    FeedForward,
    FeedForwardReader,
    deepseek,
    mixed,
    mixtral,
    uniform,
)
from quire.models.fields import Fields
from quire.models.memories import Heads
from quire.models.weights import AttentionStyle, experts, mlp, router

_SHARED = ("num_shared_experts", "n_shared_experts", "moe_num_shared_experts")


def _afmoe_kinds(fields: Fields, layers: int) -> list[str]:
    return every(fields.integer("global_attn_every_n_layers", absent=4))(fields, layers)


def _stated(fields: Fields, layers: int) -> list[str]:
    if fields.raw("layer_types") is None:
        raise fields.missing("layer_types", "say which layers have full_attention and which sliding_attention")
    return never(fields, layers)


def _full_unless_stated(fields: Fields, layers: int) -> list[str]:
    fields.raw("sliding_window")
    return never(fields, layers)


def _queries_by_layer(fields: Fields, heads: Heads, layers: int) -> list[Heads]:
    """K/V heads are the same everywhere."""
    name = "num_attention_heads_per_layer"
    fields.per_layer(name, layers)
    counts = fields.integers(name, minimum=1) or [heads.query] * layers
    for layer, count in enumerate(counts):
        must_divide(count, heads.kv, f"{name}[{layer}]", "num_key_value_heads", "each K/V head serves as many queries")
    return [replace(heads, query=count) for count in counts]


def _all_sparse(fields: Fields, hidden: int, layers: int) -> FeedForward:
    for layer, kind in enumerate(fields.per_layer("mlp_layer_types", layers) or ()):
        if kind != "sparse":
            raise fields.wrong(f"mlp_layer_types[{layer}]", kind, "every layer has experts")
    return with_shared("moe_intermediate_size")(fields, hidden, layers)


def _gated(_fields: Fields) -> AttentionStyle:
    return AttentionStyle(qk_norm="head", gated=True)


def with_shared(width: str, *, shared_width: str | None = None, correction: bool = False) -> FeedForwardReader:
    """Experts in every layer, and beside them either a shared expert of its own width or whole experts for all."""

    def read(fields: Fields, hidden: int, layers: int) -> FeedForward:
        wide, count = fields.integer(width), fields.integer(*EXPERTS)
        if shared_width is None:
            shared = wide * fields.integer(*_SHARED, absent=0, minimum=0)
        else:
            shared = fields.integer(shared_width, absent=0, minimum=0)
        one = experts(hidden, wide, count) + router(hidden, count, bias=correction)
        fields.raw("intermediate_size")
        return uniform(one + mlp(hidden, shared), layers, max(wide, shared))

    return read


def dense_layers(rule: Callable[[Fields, int], list[bool]], width: str, correction: bool = True) -> FeedForwardReader:
    """`rule` says which layers have experts; the others have an MLP of `intermediate_size`."""

    def read(fields: Fields, hidden: int, layers: int) -> FeedForward:
        sparse = with_shared("moe_intermediate_size", shared_width=width or None, correction=correction)
        one, wide = sparse(fields, hidden, layers), fields.integer("intermediate_size")
        bias = fields.flag("use_bias")
        return mixed(mlp(hidden, wide, bias), one.sparse, rule(fields, layers), max(one.width, wide))

    return read


def _listed(fields: Fields, layers: int) -> list[bool]:
    """`mlp_layer_types`, or the first `first_k_dense_replace` layers dense."""
    given = fields.kinds("mlp_layer_types", layers, {"dense": "dense", "sparse": "sparse"})
    usual = fields.defaults.get("first_k_dense_replace", 1)
    first = fields.integer("first_k_dense_replace", "num_dense_layers", absent=usual, minimum=0)
    return [kind == "sparse" for kind in given] if given else [layer >= first for layer in range(layers)]


def _ernie(fields: Fields, layers: int) -> list[bool]:
    first, last = fields.integer("moe_layer_start_index", minimum=0), fields.raw("moe_layer_end_index")
    end = last if isinstance(last, int) and last >= 0 else layers - 1
    step = fields.integer("moe_layer_interval", absent=1)
    return [first <= layer <= end and (layer + 1) % step == 0 for layer in range(layers)]


def _flint(fields: Fields, layers: int) -> list[bool]:
    """All but `mlp_only_layers`."""
    dense, step = set(fields.integers("mlp_only_layers") or ()), fields.integer("decoder_sparse_step", absent=1)
    return [layer not in dense and (layer + 1) % step == 0 for layer in range(layers)]


def _hunyuan(fields: Fields, hidden: int, layers: int) -> FeedForward:
    """One shared MLP beside the experts, as wide as they are."""
    one = mixtral(fields, hidden, layers)
    return uniform(one.sparse + mlp(hidden, one.width), layers, one.width)


def _cohere_windows(fields: Fields, layers: int) -> list[str]:
    """Dense layers come first and have a pattern of their own; each pattern ends with a full layer."""
    given = fields.kinds("layer_types", layers, WINDOW_WORDS)
    dense = fields.integer("first_k_dense_replace", absent=0, minimum=0)
    first = fields.integer("prefix_dense_sliding_window_pattern", absent=1)
    rest = fields.integer("sliding_window_pattern", absent=4)
    counted = [(layer, first) if layer < dense else (layer - dense, rest) for layer in range(layers)]
    return given or ["window" if (layer + 1) % pattern else "full" for layer, pattern in counted]


def _cohere_experts(fields: Fields, hidden: int, layers: int) -> FeedForward:
    """Experts and shared experts as wide as `intermediate_size`; dense layers may be wider."""
    fields.text("shared_expert_combination_strategy")
    one = with_shared("intermediate_size")(fields, hidden, layers)
    wide = fields.integer("prefix_dense_intermediate_size", absent=fields.integer("intermediate_size"))
    given = fields.kinds("mlp_layer_types", layers, {"dense": "dense", "sparse": "sparse"})
    dense = fields.integer("first_k_dense_replace", absent=0, minimum=0)
    is_sparse = [kind == "sparse" for kind in given] if given else [layer >= dense for layer in range(layers)]
    return mixed(mlp(hidden, wide), one.sparse, is_sparse, max(one.width, wide))


def _jetmoe_heads(fields: Fields, _hidden: int) -> Heads:
    """Each expert that a token chooses has a query for every K/V head; transformers repeats K and V for them."""
    kv, chosen = fields.integer("num_key_value_heads"), fields.integer("num_experts_per_tok")
    fields.raw("num_attention_heads")
    dim = fields.integer("kv_channels", "head_dim")
    return Heads(kv * chosen, kv * chosen, dim, dim, "num_key_value_heads × num_experts_per_tok", "kv_channels")


def _jetmoe_more(fields: Fields, hidden: int, heads: Heads) -> Weights:
    """Queries and outputs are projected by experts, K and V by one matrix for all that repeat them."""
    count, chosen = fields.integer("num_local_experts"), fields.integer("num_experts_per_tok")
    kv = heads.kv // chosen * heads.key_dim
    plain = 4 * hidden * heads.kv * heads.key_dim  # what four projections of all heads would have
    biases = Weights(plain=2 * hidden) + router(hidden, count)
    return Weights(matrices=2 * hidden * kv - plain, experts=2 * count * hidden * kv) + biases


def _stated_gate(fields: Fields, hidden: int, heads: Heads) -> Weights:
    """One number for each head, or for each number of its output."""
    is_per_head = fields.raw("gating") in (None, True, "per-head")
    return Weights(matrices=hidden * heads.query * (1 if is_per_head else heads.value_dim))


def _gate_bias(_fields: Fields, _hidden: int, heads: Heads) -> Weights:
    return Weights(plain=heads.query)


_GRANITE = {
    "vocab_size": 32000, "intermediate_size": 11008, "max_position_embeddings": 2048, "num_local_experts": 8,
}  # fmt: skip
_OLMOE = {"vocab_size": 50304, "intermediate_size": 2048, "max_position_embeddings": 4096, "num_experts": 64}

FAMILIES = (
    family("afmoe", "AfmoeForCausalLM", Design(_gated, _afmoe_kinds, dense_layers(_listed, ""), norms=4), {
        "vocab_size": 200192, "intermediate_size": 6144, "max_position_embeddings": 16384, "sliding_window": 1024,
        "moe_intermediate_size": 1408, "num_experts": 64, "head_dim": 128,
    }),
    family("aria_text", "AriaTextForCausalLM", Design(
        stated_bias(), feed_forward=with_shared("intermediate_size"),
    ), {"vocab_size": 32000, "intermediate_size": 4096, "max_position_embeddings": 2048, "moe_num_experts": 8}),
    family("beam", "BeamForCausalLM", Design(_gated, _stated, dense_layers(_listed, ""), norms=4, more=_gate_bias), {
        "vocab_size": 151936, "intermediate_size": 20480, "max_position_embeddings": 8192, "sliding_window": 512,
        "moe_intermediate_size": 2560, "num_experts": 256, "num_key_value_heads": 8, "head_dim": 128,
        "first_k_dense_replace": 3,
    }),
    family("cohere2_moe", "Cohere2MoeForCausalLM", Design(
        stated_bias(), _cohere_windows, _cohere_experts, norms=1, tied=True,
    ), {
        "vocab_size": 256000, "intermediate_size": 22528, "max_position_embeddings": 8192, "sliding_window": 4096,
        "num_experts": 8, "head_dim": 128,
    }),
    family("dots1", "Dots1ForCausalLM", Design(
        stated_bias(output=False, qk_norm="head"), qwen, deepseek(True),
    ), {
        "vocab_size": 152064, "intermediate_size": 10944, "max_position_embeddings": 2048, "sliding_window": 4096,
        "moe_intermediate_size": 1408, "first_k_dense_replace": 0,
    }),
    family("ernie4_5_moe", "Ernie4_5_MoeForCausalLM", Design(
        use_bias(), feed_forward=dense_layers(_ernie, ""), tied=True,
    ), {
        "vocab_size": 103424, "intermediate_size": 12288, "max_position_embeddings": 131072, "moe_num_experts": 64,
        "moe_intermediate_size": 1536, "num_key_value_heads": 4, "moe_layer_start_index": 1,
    }),
    family("exaone_moe", "ExaoneMoeForCausalLM", Design(
        lambda _: AttentionStyle(qk_norm="head"), every(4), dense_layers(_listed, ""),
    ), {
        "vocab_size": 102400, "intermediate_size": 16384, "max_position_embeddings": 2048, "sliding_window": 4096,
        "moe_intermediate_size": 1024, "num_experts": 64,
    }),
    family("flex_olmo", "FlexOlmoForCausalLM", Design(stated_bias(qk_norm="all"), feed_forward=mixtral), _OLMOE | {
        "vocab_size": 100352, "intermediate_size": 11008, "num_experts": 7,
    }),
    family("olmoe", "OlmoeForCausalLM", Design(stated_bias(qk_norm="all"), feed_forward=mixtral), _OLMOE),
    family("flint", "FlintForCausalLM", Design(
        stated_bias(qk_norm="head"), _stated,
        dense_layers(_flint, "shared_expert_intermediate_size", correction=False), sink_logits=True,
    ), {
        "vocab_size": 150144, "intermediate_size": 6144, "max_position_embeddings": 262144, "sliding_window": 513,
        "moe_intermediate_size": 512, "num_experts": 256, "num_key_value_heads": 4, "head_dim": 128,
    }),
    family("granitemoe", "GraniteMoeForCausalLM", Design(stated_bias(), feed_forward=mixtral), _GRANITE),
    family("granitemoeshared", "GraniteMoeSharedForCausalLM", Design(
        stated_bias(), feed_forward=with_shared("intermediate_size", shared_width="shared_intermediate_size"),
    ), _GRANITE),
    family("granitemoe_swa", "GraniteMoeSWAForCausalLM", Design(
        stated_bias(), first_full(4),
        with_shared("intermediate_size", shared_width="shared_intermediate_size"), sink_logits=True,
    ), _GRANITE | {"sliding_window": 128}),
    family("hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM", Design(
        stated_bias(qk_norm="head"), feed_forward=_hunyuan,
    ), {"vocab_size": 290943, "intermediate_size": 11008, "max_position_embeddings": 2048, "num_experts": 1}),
    family("hy_v3", "HYV3ForCausalLM", Design(
        stated_bias(qk_norm="head"), feed_forward=dense_layers(_listed, ""),
    ), {
        "vocab_size": 120832, "intermediate_size": 13312, "max_position_embeddings": 131072, "num_experts": 192,
        "moe_intermediate_size": 1536, "num_key_value_heads": 8, "head_dim": 128,
    }),
    family("jetmoe", "JetMoeForCausalLM", Design(
        feed_forward=mixtral, heads=_jetmoe_heads, more=_jetmoe_more, tied=True,
    ), {
        "vocab_size": 32000, "intermediate_size": 5632, "max_position_embeddings": 4096, "num_local_experts": 8,
        "num_experts_per_tok": 2, "num_key_value_heads": 16, "kv_channels": 128,
    }),
    family("kolibri1", "Kolibri1ForCausalLM", Design(
        lambda _: AttentionStyle(qk_norm="head"), every(5),
        with_shared("moe_intermediate_size", shared_width="shared_expert_intermediate_size", correction=True), norms=4,
    ), {
        "vocab_size": 128000, "max_position_embeddings": 262144, "sliding_window": 513, "num_local_experts": 384,
        "moe_intermediate_size": 512, "num_key_value_heads": 4, "head_dim": 128,
    }),
    family("laguna", "LagunaForCausalLM", Design(
        stated_bias(qk_norm="head"), _full_unless_stated, dense_layers(_listed, "shared_expert_intermediate_size"),
        more=_stated_gate, layer_heads=_queries_by_layer,
    ), {
        "vocab_size": 100352, "intermediate_size": 8192, "max_position_embeddings": 131072, "sliding_window": 512,
        "moe_intermediate_size": 512, "num_experts": 256, "num_key_value_heads": 8, "head_dim": 128,
    }),
    family("mellum", "MellumForCausalLM", Design(
        stated_bias(qk_norm="head"), _full_unless_stated, _all_sparse,
    ), {
        "vocab_size": 98304, "max_position_embeddings": 131072, "sliding_window": 1024, "num_local_experts": 64,
        "moe_intermediate_size": 896, "num_key_value_heads": 4, "head_dim": 128,
    }),
    family("solar_open", "SolarOpenForCausalLM", Design(
        plain, feed_forward=with_shared("moe_intermediate_size", correction=True),
    ), {
        "vocab_size": 196608, "max_position_embeddings": 131072, "n_routed_experts": 128,
        "moe_intermediate_size": 1280, "num_key_value_heads": 8, "head_dim": 128,
    }),
)  # fmt: skip
