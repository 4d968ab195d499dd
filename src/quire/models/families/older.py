"""Families of 2021 to 2024 that are still in use: BLOOM, MPT, Falcon, GPT-J, GPT-Neo, CodeGen, XGLM, DBRX."""

from __future__ import annotations

from dataclasses import replace

from quire.models.blueprint import Block, Blueprint, Family, Weights
from quire.models.families.attention import Design, family
from quire.models.families.common import Trunk, must_be, must_divide, read_tied, read_trunk
from quire.models.families.dense import wide
from quire.models.families.feedforward import FeedForward, uniform
from quire.models.fields import MOST_LAYERS, Fields, whole_number
from quire.models.memories import Heads, full
from quire.models.weights import AttentionStyle, attention, experts, mlp, norms, router


def _output_bias(_fields: Fields) -> AttentionStyle:
    return AttentionStyle(output_bias=True)


def _even_heads(fields: Fields, hidden: int) -> Heads:
    """As many K/V heads as queries, equally wide."""
    query = fields.integer("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
    dim = must_divide(hidden, query, "hidden_size", "num_attention_heads", "heads are equally wide")
    return Heads(query, query, dim, dim, "num_attention_heads", "hidden_size ÷ num_attention_heads")


def _neo_windows(fields: Fields, layers: int) -> list[str]:
    """`attention_types` spells the words of `attention_layers` in short."""
    words = {"global": "full", "local": "window"}
    spelled, listed = _spelled_out(fields), fields.items("attention_layers")
    if spelled is not None and listed is not None and spelled != listed:
        raise fields.wrong("attention_layers", listed, "it disagrees with attention_types, keep the one that is right")
    usual = ["global", "local"] * 12
    own = {"attention_layers": listed or spelled or usual, "sliding_window": fields.integer("window_size")}
    fields.config = {**fields.config, **own}
    return fields.kinds("attention_layers", layers, words) or []


def _spelled_out(fields: Fields) -> list[object] | None:
    """A list of [words, count]: the words repeat so many times."""
    entries = fields.items("attention_types")
    if entries is None:
        return None
    spelled: list[object] = []
    for i, entry in enumerate(entries):
        if not (isinstance(entry, list | tuple) and len(entry) == 2 and isinstance(entry[0], list | tuple)):
            raise fields.wrong(f"attention_types[{i}]", entry, "use [[words], count]")
        spelled += list(entry[0]) * whole_number(entry[1], f"attention_types[{i}][1]", 0, MOST_LAYERS)
    return spelled


def read_bloom(fields: Fields) -> Blueprint:
    """The embedding has a norm of its own. `seq_length` is how long it was trained; without it there is no limit."""
    layers = fields.integer("num_hidden_layers", "n_layer", maximum=MOST_LAYERS)
    hidden = fields.integer("hidden_size", "n_embed")
    longest = fields.optional_integer("seq_length", "max_position_embeddings")
    trunk = Trunk(layers, hidden, fields.integer("vocab_size"), read_tied(fields, True), longest)
    heads = _even_heads(fields, hidden)
    own = attention(hidden, heads, AttentionStyle(True, True)) + mlp(hidden, 4 * hidden, True, gated=False)
    block = Block((full(heads),), own + norms(4 * hidden))
    return trunk.blueprint(
        [block] * layers, query_heads=heads.query, intermediate=4 * hidden, final=norms(2 * hidden),
        more_embeddings=2 * hidden,
    )  # fmt: skip


def _flattened(fields: Fields, *names: str) -> None:
    """Fields of these sections are read as if they stood outside; the model's width is `d_model`, whatever they say."""
    for name in names:
        section = fields.section(name)
        if section is not None:
            stated = {field: value for field, value in fields.config.items() if value is not None}
            section.raw("hidden_size")
            inner = {field: value for field, value in section.config.items() if field != "hidden_size"}
            fields.config = {**inner, **stated}


def read_mpt(fields: Fields) -> Blueprint:
    """Every bias and every other choice of the original code is ignored by transformers, so they must be the usual."""
    _flattened(fields, "attn_config")
    for name, value in (("attn_type", "multihead_attention"), ("alibi", True), ("alibi_bias_max", 8)):
        must_be(fields, name, value)
    for name in ("prefix_lm", "qk_ln"):
        must_be(fields, name, False)
    must_be(fields, "expansion_ratio", 4)
    must_be(fields, "no_bias", True)
    if fields.raw("logit_scale") is not None:
        raise fields.wrong("logit_scale", fields.raw("logit_scale"), "transformers does not scale logits")
    fields.raw("attn_pdrop", "attn_impl", "attn_uses_sequence_id")
    trunk = read_trunk(fields, tied=True)
    heads = _even_heads(fields, trunk.hidden)
    own = attention(trunk.hidden, heads, AttentionStyle()) + mlp(trunk.hidden, 4 * trunk.hidden, gated=False)
    block = Block((full(heads),), own + norms(2 * trunk.hidden))
    return trunk.blueprint([block] * trunk.layers, query_heads=heads.query, intermediate=4 * trunk.hidden)


def _falcon_heads(fields: Fields, hidden: int) -> Heads:
    """The newer layout has groups of queries; the older one a single K/V head for all, or one for each query."""
    every = _even_heads(fields, hidden)
    stated = fields.integer("num_kv_heads", "n_head_kv", absent=every.query)
    fields.raw("num_key_value_heads")
    if fields.flag("new_decoder_architecture"):
        must_divide(every.query, stated, "num_attention_heads", "num_kv_heads", "each serves equally many queries")
        return replace(every, kv=stated, kv_field="num_kv_heads")
    return replace(every, kv=1, kv_field="multi_query") if fields.flag("multi_query", absent=True) else every


def read_falcon(fields: Fields) -> Blueprint:
    trunk = read_trunk(fields, tied=True)
    heads = _falcon_heads(fields, trunk.hidden)
    width, bias = fields.integer("ffn_hidden_size", absent=4 * trunk.hidden), fields.flag("bias")
    newer, parallel = fields.flag("new_decoder_architecture"), fields.flag("parallel_attn", absent=True)
    count = fields.integer("num_ln_in_parallel_attn", absent=2 if newer else 1) if parallel else 2
    own = attention(trunk.hidden, heads, AttentionStyle(bias, bias)) + mlp(trunk.hidden, width, bias, gated=False)
    block = Block((full(heads),), own + norms(2 * count * trunk.hidden))
    return trunk.blueprint(
        [block] * trunk.layers, query_heads=heads.query, intermediate=width, final=norms(2 * trunk.hidden)
    )


def read_dbrx(fields: Fields) -> Blueprint:
    _flattened(fields, "attn_config", "ffn_config")
    trunk = read_trunk(fields)
    query, kv = fields.integer("n_heads", "num_attention_heads"), fields.integer("kv_n_heads", "num_key_value_heads")
    fields.raw("num_key_value_heads", "num_attention_heads")
    must_divide(query, kv, "n_heads", "kv_n_heads", "each K/V head serves equally many queries")
    dim = must_divide(trunk.hidden, query, "d_model", "n_heads", "heads are equally wide")
    heads = Heads(query, kv, dim, dim, "kv_n_heads", "d_model ÷ n_heads")
    count, width = fields.integer("moe_num_experts"), fields.integer("ffn_hidden_size", "intermediate_size")
    own = attention(trunk.hidden, heads, AttentionStyle()) + norms(2 * trunk.hidden)
    own += experts(trunk.hidden, width, count) + router(trunk.hidden, count)
    return trunk.blueprint([Block((full(heads),), own)] * trunk.layers, query_heads=query, intermediate=width)


def _xglm_style(fields: Fields) -> AttentionStyle:
    if fields.flag("add_cross_attention"):
        raise fields.wrong("add_cross_attention", True, "only decoders without an encoder are known")
    return AttentionStyle(True, True)


def _japanese(fields: Fields, hidden: int, layers: int) -> FeedForward:
    """The attention of the last layer has a bias."""
    width = hidden * fields.integer("intermediate_multiple_size", absent=4)
    one = mlp(hidden, width, gated=False)
    return replace(uniform(one, layers, width), per_layer=(one,) * (layers - 1) + (one + Weights(plain=hidden),))


_GPT = {"vocab_size": 50400, "n_positions": 2048, "max_position_embeddings": 2048}

FAMILIES = (
    Family("bloom", read_bloom, {"vocab_size": 250880}, ("BloomForCausalLM",)),
    Family("mpt", read_mpt, {"vocab_size": 50368, "max_position_embeddings": 2048}, (
        "MptForCausalLM", "MPTForCausalLM",
    )),
    Family("falcon", read_falcon, {"vocab_size": 65024, "max_position_embeddings": 2048}, (
        "FalconForCausalLM", "RWForCausalLM",
    )),
    Family("dbrx", read_dbrx, {
        "vocab_size": 32000, "max_position_embeddings": 2048, "kv_n_heads": 1, "moe_num_experts": 4,
        "ffn_hidden_size": 3584,
    }, ("DbrxForCausalLM",)),
    family("gptj", "GPTJForCausalLM", Design(
        feed_forward=wide("n_inner"), norms=1, norm_bias=True, head_bias=True, heads=_even_heads,
    ), _GPT),
    family("codegen", "CodeGenForCausalLM", Design(
        feed_forward=wide("n_inner"), norms=1, norm_bias=True, head_bias=True, heads=_even_heads,
    ), _GPT),
    family("gpt_neo", "GPTNeoForCausalLM", Design(
        _output_bias, _neo_windows, wide("intermediate_size"), norm_bias=True, tied=True, positions=0,
        heads=_even_heads,
    ), {"vocab_size": 50257, "max_position_embeddings": 2048, "window_size": 256}),
    family("gpt_neox_japanese", "GPTNeoXJapaneseForCausalLM", Design(
        feed_forward=_japanese, norm_bias=True, tied=True, heads=_even_heads,
    ), {"vocab_size": 32000, "max_position_embeddings": 2048}),
    family("xglm", "XGLMForCausalLM", Design(
        _xglm_style, feed_forward=wide("ffn_dim"), norm_bias=True, tied=True, heads=_even_heads,
    ), {"vocab_size": 256008, "max_position_embeddings": 2048}),
)  # fmt: skip
