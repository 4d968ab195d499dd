"""MLA families: DeepSeek V2, V3 and V3.2, Kimi K2, GLM-4.7-Flash and GLM-5, A.X K1, Youtu, MiniCPM3. One latent row a
token serves all heads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quire.core.errors import ModelError
from quire.models.blueprint import Block, Blueprint, Family, Weights
from quire.models.families.attention import read_drafts
from quire.models.families.common import must_divide, read_trunk
from quire.models.families.feedforward import FeedForward, FeedForwardReader, deepseek, dense
from quire.models.fields import Fields
from quire.models.memories import indexed, latent, latent_parts
from quire.models.weights import LatentSizes, draft_glue, indexer, latent_attention, norms


@dataclass(frozen=True, slots=True)
class Index:
    """Numbers of an index key, and tokens that a query reads."""

    width: int
    top_tokens: int


def read_latent_sizes(fields: Fields) -> LatentSizes:
    query = fields.integer("num_attention_heads")
    fields.optional_integer("num_key_value_heads")
    fields.raw("head_dim", "qk_head_dim")
    return LatentSizes(
        query, fields.optional_integer("q_lora_rank"), fields.integer("kv_lora_rank"),
        fields.integer("qk_nope_head_dim"), fields.integer("qk_rope_head_dim"), _value_width(fields, query),
    )  # fmt: skip


def _value_width(fields: Fields, query: int) -> int:
    """Of each head. MiniCPM3 leaves it out where values are as wide as an equal share of the model."""
    if fields.family == "minicpm3" and fields.raw("v_head_dim") is None:
        hidden = fields.integer("hidden_size")
        return must_divide(hidden, query, "hidden_size", "num_attention_heads", "state v_head_dim")
    return fields.integer("v_head_dim")


def read_latent(feed_forward: FeedForwardReader) -> Callable[[Fields], Blueprint]:
    """Dense attention over latents."""

    def read(fields: Fields) -> Blueprint:
        return _blueprint(fields, feed_forward, None)

    return read


def _normed_experts(fields: Fields, hidden: int, layers: int) -> FeedForward:
    """A.X K1: a norm after the experts, in layers that have them."""
    plain = deepseek(True)(fields, hidden, layers)
    sparse = plain.sparse + norms(hidden)
    return FeedForward(tuple(sparse if one is plain.sparse else one for one in plain.per_layer), plain.width, sparse)


def read_sparse(fields: Fields) -> Blueprint:
    """An indexer in each layer keeps one index key a token; `shared` layers use the selection of an earlier layer."""
    return _blueprint(fields, deepseek(True), Index(fields.integer("index_head_dim"), fields.integer("index_topk")))


def _own_indexer(fields: Fields, layers: int) -> list[bool]:
    words = {"full": "full", "shared": "shared"}
    given = fields.kinds("indexer_types", layers, words)
    if given is not None:
        fields.raw("index_topk_pattern", "index_topk_freq", "index_skip_topk_offset")
        return [kind == "full" for kind in given]
    pattern = fields.text("index_topk_pattern")
    if pattern is not None:
        if len(pattern) != layers or set(pattern) - set("FS"):
            raise fields.wrong("index_topk_pattern", pattern, f"use F and S, one for each of {layers} layers")
        return [letter == "F" for letter in pattern]
    every = fields.integer("index_topk_freq", absent=1)
    offset = fields.integer("index_skip_topk_offset", absent=2, minimum=0)
    return [max(layer - offset + 1, 0) % every == 0 for layer in range(layers)]


def _index_weights(fields: Fields, hidden: int, sizes: LatentSizes, width: int) -> Weights:
    if sizes.query_rank is None:
        raise ModelError("q_lora_rank is missing: the indexer reads the query's latent, state its width")
    return indexer(hidden, sizes.query_rank, fields.integer("index_n_heads"), width)


def _blueprint(fields: Fields, feed_forward: FeedForwardReader, index: Index | None) -> Blueprint:
    trunk = read_trunk(fields, tied=fields.family in ("youtu", "minicpm3"))
    sizes = read_latent_sizes(fields)
    words = {"full_attention": "latent", "indexed_attention": "latent"}
    fields.kinds("layer_types", trunk.layers, words)
    feed = feed_forward(fields, trunk.hidden, trunk.layers)
    shared = latent_attention(trunk.hidden, sizes, fields.flag("attention_bias")) + norms(2 * trunk.hidden)
    own, index_weights = [False] * trunk.layers, Weights()
    without = with_index = latent(sizes.rank, sizes.rope)
    if index is not None:
        own = _own_indexer(fields, trunk.layers)
        if not own[0]:
            raise ModelError("layer 0 has no indexer and no earlier layer to take a selection from: give it one")
        index_weights = _index_weights(fields, trunk.hidden, sizes, index.width)
        without = indexed(latent_parts(sizes.rank, sizes.rope), index.top_tokens)
        with_index = indexed(without.parts, index.top_tokens, index.width)
    blocks = [
        Block((with_index,) if has else (without,), shared + ffn + (index_weights if has else Weights()))
        for has, ffn in zip(own, feed.per_layer, strict=True)
    ]
    draft = Block((with_index,), shared + index_weights + feed.sparse + draft_glue(trunk.hidden))
    drafts = [draft] * read_drafts(fields)
    return trunk.blueprint(blocks, query_heads=sizes.heads, intermediate=feed.width, drafts=drafts)


_LATENT = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128}
_V3 = _LATENT | {
    "vocab_size": 129280, "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
    "first_k_dense_replace": 3, "max_position_embeddings": 4096,
}  # fmt: skip
_INDEX = {"index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048, "max_position_embeddings": 163840}

FAMILIES = (
    Family("deepseek_v2", read_latent(deepseek(False)), _LATENT | {
        "vocab_size": 102400, "intermediate_size": 11008, "moe_intermediate_size": 1407, "n_routed_experts": 64,
        "first_k_dense_replace": 0, "max_position_embeddings": 2048,
    }, ("DeepseekV2ForCausalLM",)),
    Family("deepseek_v3", read_latent(deepseek(True)), _V3, ("DeepseekV3ForCausalLM",)),
    Family("kimi_k2", read_latent(deepseek(True)), _V3, ("KimiK2ForCausalLM",)),
    Family("glm4_moe_lite", read_latent(deepseek(True)), _LATENT | {
        "vocab_size": 154880, "intermediate_size": 10240, "moe_intermediate_size": 1536, "n_routed_experts": 64,
        "first_k_dense_replace": 1, "v_head_dim": 256, "qk_nope_head_dim": 192, "max_position_embeddings": 202752,
    }, ("Glm4MoeLiteForCausalLM",)),
    Family("axk1", read_latent(_normed_experts), _V3 | {
        "vocab_size": 163840, "n_routed_experts": 192, "first_k_dense_replace": 1, "max_position_embeddings": 32768,
    }, ("AXK1ForCausalLM",)),
    Family("youtu", read_latent(dense), _LATENT | {
        "vocab_size": 128256, "intermediate_size": 6144, "max_position_embeddings": 131072,
    }, ("YoutuForCausalLM",)),
    Family("minicpm3", read_latent(dense), {
        "vocab_size": 73448, "intermediate_size": 6400, "max_position_embeddings": 32768, "kv_lora_rank": 256,
        "qk_nope_head_dim": 64, "qk_rope_head_dim": 32,
    }, ("MiniCPM3ForCausalLM",)),
    Family("deepseek_v32", read_sparse, _V3 | _INDEX, ("DeepseekV32ForCausalLM",)),
    Family("glm_moe_dsa", read_sparse, _V3 | _INDEX | {
        "vocab_size": 154880, "intermediate_size": 12288, "v_head_dim": 256, "qk_nope_head_dim": 192,
        "index_n_heads": 32, "max_position_embeddings": 202752,
    }, ("GlmMoeDsaForCausalLM",)),
)  # fmt: skip
