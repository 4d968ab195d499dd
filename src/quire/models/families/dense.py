"""Dense families beside Llama's: other norms, other MLPs, learned positions, one K/V head for all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from quire.models.blueprint import Blueprint, Family, Weights
from quire.models.families.attention import Design, family, plain, stated_bias
from quire.models.families.common import WINDOW_WORDS, WindowRule, always, every, must_divide
from quire.models.families.feedforward import FeedForward, FeedForwardReader, ungated, uniform
from quire.models.fields import Fields
from quire.models.memories import Heads
from quire.models.weights import AttentionStyle, linear, mlp, norms


def first_full(period: int) -> WindowRule:
    """The first of each `period` layers is full, the others have the window."""

    def rule(fields: Fields, layers: int) -> list[str]:
        given = fields.kinds("layer_types", layers, WINDOW_WORDS)
        return given or ["window" if layer % period else "full" for layer in range(layers)]

    return rule


def use_bias(absent: bool = False) -> Callable[[Fields], AttentionStyle]:
    """`use_bias` decides about all biases."""

    def read(fields: Fields) -> AttentionStyle:
        bias = fields.flag("use_bias", absent)
        return AttentionStyle(bias, bias)

    return read


def biased(_fields: Fields) -> AttentionStyle:
    return AttentionStyle(True, True)


def _seed_style(fields: Fields) -> AttentionStyle:
    return AttentionStyle(fields.flag("attention_bias", True), fields.flag("attention_out_bias"))


def _stablelm_style(fields: Fields) -> AttentionStyle:
    return AttentionStyle(qkv_bias=fields.flag("use_qkv_bias"))


def _opt_style(fields: Fields) -> AttentionStyle:
    bias = fields.flag("enable_bias", absent=True)
    return AttentionStyle(bias, bias)


def _used_bias(fields: Fields, hidden: int, layers: int) -> FeedForward:
    width = fields.integer("intermediate_size")
    return uniform(mlp(hidden, width, fields.flag("use_bias")), layers, width)


def wide(*names: str, bias: str | None = None) -> FeedForwardReader:
    """Two matrices with biases; four times as wide as the model where no width is stated."""

    def read(fields: Fields, hidden: int, layers: int) -> FeedForward:
        width = fields.integer(*names, absent=4 * hidden)
        return uniform(mlp(hidden, width, bias is None or fields.flag(bias, True), gated=False), layers, width)

    return read


def _apertus_more(_fields: Fields, _hidden: int, _heads: Heads) -> Weights:
    return Weights(replicated=4)  # the activation's slopes and constants


def _bitnet_more(fields: Fields, hidden: int, _heads: Heads) -> Weights:
    return norms(hidden + fields.integer("intermediate_size"))


def _hyperclova_more(fields: Fields, hidden: int, _heads: Heads) -> Weights:
    return norms(2 * hidden if fields.flag("use_post_norm") else 0)


def _head_norms(fields: Fields, _hidden: int, heads: Heads) -> Weights:
    """LayerNorm of queries and keys: scale and shift."""
    return norms(4 * heads.key_dim if fields.flag("qk_layernorm", "persimmon" in fields.family) else 0)


def _stablelm_more(fields: Fields, hidden: int, heads: Heads) -> Weights:
    """A norm for each head; layers whose parts run side by side share their first norm."""
    shared = -2 * hidden if fields.flag("use_parallel_residual") else 0
    return norms(shared + ((heads.query + heads.kv) * heads.key_dim if fields.flag("qk_layernorm") else 0))


def _one_head(fields: Fields, hidden: int) -> Heads:
    """`multi_query`: all queries read one K/V head."""
    query = fields.integer("num_attention_heads", "n_head")
    fields.raw("num_key_value_heads", "scale_attention_softmax_in_fp32")
    dim = must_divide(hidden, query, "n_embd", "n_head", "heads are equally wide")
    return Heads(
        query, 1 if fields.flag("multi_query", absent=True) else query, dim, dim, "multi_query", "n_embd ÷ n_head"
    )


_OPT = Design(_opt_style, feed_forward=wide("ffn_dim", bias="enable_bias"), norm_bias=True, tied=True, positions=2)


def _read_opt(fields: Fields) -> Blueprint:
    """Embeddings may be narrower than the layers: two projections lie between. Norms may come after the layers' parts,
    and then there is none at the end."""
    blueprint = _OPT.read(fields)
    hidden, narrow = blueprint.hidden_size, fields.integer("word_embed_proj_dim", absent=blueprint.hidden_size)
    ends = fields.flag("do_layer_norm_before", absent=True) and not fields.flag("_remove_final_layer_norm")
    between = Weights() if narrow == hidden else linear(narrow, hidden) + linear(hidden, narrow)
    return replace(blueprint, embedding_size=narrow, final=between + (blueprint.final if ends else Weights()))


_SMALL = {"vocab_size": 32000, "intermediate_size": 11008, "max_position_embeddings": 2048}
_GPT = {"vocab_size": 50257, "n_positions": 1024, "max_position_embeddings": 1024}

FAMILIES = (
    family("apertus", "ApertusForCausalLM", Design(
        stated_bias(qk_norm="head"), feed_forward=ungated, more=_apertus_more,
    ), {"vocab_size": 131072, "intermediate_size": 14336, "max_position_embeddings": 65536}),
    family("arcee", "ArceeForCausalLM", Design(stated_bias(), feed_forward=ungated), _SMALL | {
        "intermediate_size": 18432, "max_position_embeddings": 4096,
    }),
    family("bitnet", "BitNetForCausalLM", Design(stated_bias(), more=_bitnet_more), {
        "vocab_size": 128256, "intermediate_size": 6912, "max_position_embeddings": 2048, "num_key_value_heads": 5,
    }),
    family("cwm", "CwmForCausalLM", Design(plain, first_full(4)), {
        "vocab_size": 128256, "intermediate_size": 21504, "max_position_embeddings": 131072, "sliding_window": 8192,
        "num_key_value_heads": 8, "head_dim": 128,
    }),
    family("ernie4_5", "Ernie4_5ForCausalLM", Design(use_bias(), feed_forward=_used_bias, tied=True), {
        "vocab_size": 103424, "intermediate_size": 3072, "max_position_embeddings": 131072, "num_key_value_heads": 2,
        "head_dim": 128,
    }),
    family("gemma", "GemmaForCausalLM", Design(stated_bias(), tied=True), {
        "vocab_size": 256000, "intermediate_size": 24576, "max_position_embeddings": 8192, "num_key_value_heads": 16,
        "head_dim": 256,
    }),
    family("vaultgemma", "VaultGemmaForCausalLM", Design(stated_bias(), every(2), tied=True), {
        "vocab_size": 256000, "intermediate_size": 9216, "max_position_embeddings": 8192, "num_key_value_heads": 4,
        "head_dim": 256, "sliding_window": 4096,
    }),
    family("glm", "GlmForCausalLM", Design(stated_bias(output=False, absent=True)), {
        "vocab_size": 151552, "intermediate_size": 13696, "max_position_embeddings": 131072, "num_key_value_heads": 2,
        "head_dim": 128,
    }),
    family("granite_swa", "GraniteSWAForCausalLM", Design(
        stated_bias(), first_full(4), tied=True, sink_logits=True,
    ), {
        "vocab_size": 100352, "intermediate_size": 8192, "max_position_embeddings": 8192, "num_key_value_heads": 4,
        "sliding_window": 128,
    }),
    family("helium", "HeliumForCausalLM", Design(stated_bias(output=False)), {
        "vocab_size": 48000, "intermediate_size": 7040, "max_position_embeddings": 4096, "num_key_value_heads": 20,
        "head_dim": 128,
    }),
    family("hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", Design(stated_bias(qk_norm="head")), _SMALL | {
        "vocab_size": 290943,
    }),
    family("hyperclovax", "HyperCLOVAXForCausalLM", Design(stated_bias(), more=_hyperclova_more), _SMALL),
    family("jais2", "Jais2ForCausalLM", Design(
        stated_bias(absent=True), feed_forward=wide("intermediate_size", bias="mlp_bias"), norm_bias=True,
    ), {"vocab_size": 150272, "max_position_embeddings": 8192, "num_key_value_heads": 26, "head_dim": 128}),
    family("nanochat", "NanoChatForCausalLM", Design(stated_bias(), feed_forward=ungated, norms=0), {
        "vocab_size": 50304, "intermediate_size": 8192, "max_position_embeddings": 2048, "num_key_value_heads": 6,
    }),
    family("nemotron", "NemotronForCausalLM", Design(stated_bias(), feed_forward=ungated, norm_bias=True), {
        "vocab_size": 256000, "intermediate_size": 24576, "max_position_embeddings": 4096,
    }),
    family("olmo", "OlmoForCausalLM", Design(stated_bias(), norms=0), _SMALL | {"vocab_size": 50304}),
    family("seed_oss", "SeedOssForCausalLM", Design(_seed_style), {
        "vocab_size": 155136, "intermediate_size": 27648, "max_position_embeddings": 524288, "num_key_value_heads": 8,
        "head_dim": 128,
    }),
    family("stablelm", "StableLmForCausalLM", Design(_stablelm_style, more=_stablelm_more, norm_bias=True), {
        "vocab_size": 50304, "intermediate_size": 6912, "max_position_embeddings": 4096, "num_key_value_heads": 32,
    }),
    family("starcoder2", "Starcoder2ForCausalLM", Design(
        use_bias(True), always, wide("intermediate_size", bias="use_bias"), norm_bias=True, tied=True,
    ), {"vocab_size": 49152, "max_position_embeddings": 4096, "num_key_value_heads": 2}),
    family("phi", "PhiForCausalLM", Design(
        biased, feed_forward=wide("intermediate_size"), norms=1, norm_bias=True, more=_head_norms, head_bias=True,
    ), {"vocab_size": 51200, "max_position_embeddings": 2048}),
    family("persimmon", "PersimmonForCausalLM", Design(
        biased, feed_forward=wide("intermediate_size"), norm_bias=True, more=_head_norms,
    ), {"vocab_size": 262144, "max_position_embeddings": 16384}),
    family("gpt_neox", "GPTNeoXForCausalLM", Design(
        stated_bias(absent=True), feed_forward=wide("intermediate_size"), norm_bias=True,
    ), {"vocab_size": 50432, "max_position_embeddings": 2048}),
    family("gpt2", "GPT2LMHeadModel", Design(
        biased, feed_forward=wide("n_inner"), norm_bias=True, tied=True, positions=0,
    ), _GPT),
    family("gpt_bigcode", "GPTBigCodeForCausalLM", Design(
        biased, feed_forward=wide("n_inner"), norm_bias=True, tied=True, positions=0, heads=_one_head,
    ), _GPT),
    Family("opt", _read_opt, {"vocab_size": 50272, "max_position_embeddings": 2048}, ("OPTForCausalLM",)),
    family("biogpt", "BioGptForCausalLM", Design(
        biased, feed_forward=wide("intermediate_size"), norm_bias=True, tied=True, positions=2,
    ), {"vocab_size": 42384, "max_position_embeddings": 1024}),
)  # fmt: skip
