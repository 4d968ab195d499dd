"""DeepSeek-V4: a short window in every layer, and behind it a history folded `ratio` tokens to one row.

    ratio 0      window only
    ratio 4      rows overlap (each is made of 8 tokens) and an indexer chooses among them
    ratio 128    rows do not overlap, all of them are read

Until a row is complete its ingredients wait in the compressor's own small window.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.dtypes import DType
from quire.core.errors import ModelError
from quire.core.memory import Follows, Memory, Part
from quire.models.blueprint import Block, Blueprint, Family, Weights
from quire.models.families.attention import read_drafts
from quire.models.families.common import read_trunk
from quire.models.fields import Fields
from quire.models.memories import index_part
from quire.models.weights import draft_glue, experts, mlp, norms, router

OVERLAPPING, HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
SCALE_BYTES = 8
"""An 8-bit row carries one scale byte for each 64 numbers, padded to eight."""


@dataclass(frozen=True, slots=True)
class Sizes:
    head: int
    rope: int
    index: int
    window: int
    overlapping: int
    """The ratio whose rows overlap and are indexed."""

    def row(self) -> tuple[Part, ...]:
        wide = self.head - self.rope
        origin = f"head_dim {self.head} − qk_rope_head_dim {self.rope}"
        return (
            Part("latent", 1, wide, follows=Follows.KV, replicated=True, scale_bytes=SCALE_BYTES, origin=origin),
            Part("rope", 1, self.rope, DType.BF16, replicated=True, origin=f"qk_rope_head_dim {self.rope}"),
        )

    def memories(self, ratio: int) -> tuple[Memory, ...]:
        nearby = Memory("window", self.row(), window=self.window)
        if ratio == 0:
            return (nearby,)
        overlaps = ratio == self.overlapping
        parts = self.row() + ((index_part(self.index),) if overlaps else ())
        history = Memory("latent", parts, tokens_per_state=ratio)
        waiting = Memory("window", self._waiting(overlaps), window=ratio * (2 if overlaps else 1), purpose="compressor")
        return (nearby, history, waiting)

    def _waiting(self, overlaps: bool) -> tuple[Part, ...]:
        """Values and gates of tokens not folded yet; overlapping rows need each token twice."""
        times = 2 if overlaps else 1
        origin = f"2 × {times} × head_dim {self.head}"
        parts = (Part("pending", 1, 2 * times * self.head, DType.FP32, replicated=True, origin=origin),)
        if not overlaps:
            return parts
        origin = f"2 × 2 × index_head_dim {self.index}"
        return (*parts, Part("pending_index", 1, 4 * self.index, DType.FP32, replicated=True, origin=origin))


def _rates(fields: Fields) -> dict[str, int]:
    section = fields.section("compress_rates")
    rates = {OVERLAPPING: 4, HEAVY: 128}
    for name, old in ((OVERLAPPING, "compress_rate_csa"), (HEAVY, "compress_rate_hca")):
        stated = None if section is None else section.optional_integer(name)
        rates[name] = stated or fields.optional_integer(old) or rates[name]
    return rates


def _ratios(fields: Fields, layers: int, drafts: int, rates: dict[str, int]) -> tuple[list[int], list[int]]:
    """Ratios of the layers and of the MTP layers, which older configurations list at the end."""
    words = {"sliding_attention": "0"} | {name: str(rate) for name, rate in rates.items()}
    given = fields.kinds("layer_types", layers, words)
    ratios = fields.integers("compress_ratios")
    if given is not None:
        return [int(ratio) for ratio in given], [0] * drafts
    if ratios is None:
        raise fields.missing("compress_ratios", "state the ratio of each layer (0, 4 or 128), or layer_types")
    if len(ratios) not in (layers, layers + drafts):
        raise ModelError(
            f"compress_ratios has {len(ratios)} entries for {layers} layers and {drafts} MTP layers: give one for each"
        )
    return ratios[:layers], (ratios[layers:] or [0] * drafts)


def _compressor(fields: Fields, hidden: int, sizes: Sizes, ratio: int) -> Weights:
    if ratio == 0:
        return Weights()
    times = 2 if ratio == sizes.overlapping else 1
    wide = times * sizes.head
    total = Weights(latent=2 * hidden * wide, replicated=ratio * wide + sizes.head)
    if times == 2:
        heads, rank = fields.integer("index_n_heads"), fields.integer("q_lora_rank")
        total += Weights(latent=4 * hidden * sizes.index, replicated=2 * ratio * sizes.index + sizes.index)
        total += Weights(latent=rank * heads * sizes.index + hidden * heads)
    return total


def _attention(fields: Fields, hidden: int, sizes: Sizes) -> Weights:
    heads, rank = fields.integer("num_attention_heads"), fields.integer("q_lora_rank")
    groups, inner = fields.integer("o_groups"), fields.integer("o_lora_rank")
    wide = heads * sizes.head
    down = Weights(latent=hidden * (rank + sizes.head), replicated=rank + sizes.head)
    up = Weights(matrices=rank * wide + wide * inner + groups * inner * hidden, plain=heads)
    return down + up + norms(2 * hidden)


def _experts(fields: Fields, hidden: int) -> tuple[Weights, int]:
    count, width = fields.integer("n_routed_experts", "num_local_experts"), fields.integer("moe_intermediate_size")
    shared = fields.integer("n_shared_experts", absent=1, minimum=0)
    return experts(hidden, width, count) + router(hidden, count, bias=True) + mlp(hidden, width * shared), width


def _hyper_connections(hidden: int, streams: int) -> Weights:
    """Two a layer: how the parallel residual streams mix."""
    rows = (2 + streams) * streams
    return Weights(replicated=2 * (rows * streams * hidden + rows + 3))


def read(fields: Fields) -> Blueprint:
    trunk = read_trunk(fields)
    rates, drafts = _rates(fields), read_drafts(fields)
    sizes = Sizes(
        fields.integer("head_dim"), fields.integer("qk_rope_head_dim"), fields.integer("index_head_dim"),
        fields.integer("sliding_window"), rates[OVERLAPPING],
    )  # fmt: skip
    if sizes.rope >= sizes.head:
        raise ModelError(f"qk_rope_head_dim {sizes.rope} leaves nothing of head_dim {sizes.head}: it must be smaller")
    fields.raw("num_key_value_heads", "mlp_layer_types", "num_hash_layers", "index_topk", "partial_rotary_factor")
    ratios, draft_ratios = _ratios(fields, trunk.layers, drafts, rates)
    moe, width = _experts(fields, trunk.hidden)
    streams = fields.integer("hc_mult")
    shared = _attention(fields, trunk.hidden, sizes) + moe + _hyper_connections(trunk.hidden, streams)

    def block(ratio: int, more: Weights) -> Block:
        return Block(sizes.memories(ratio), shared + _compressor(fields, trunk.hidden, sizes, ratio) + more)

    mixing = Weights(replicated=streams * streams * trunk.hidden + streams + 1)
    return trunk.blueprint(
        [block(ratio, Weights()) for ratio in ratios], query_heads=fields.integer("num_attention_heads"),
        intermediate=width, drafts=[block(ratio, draft_glue(trunk.hidden)) for ratio in draft_ratios],
        final=norms(trunk.hidden) + mixing,
    )  # fmt: skip


FAMILIES = (
    Family("deepseek_v4", read, {
        "vocab_size": 129280, "moe_intermediate_size": 2048, "q_lora_rank": 1024, "n_routed_experts": 256,
        "max_position_embeddings": 1048576, "o_groups": 8, "o_lora_rank": 1024, "index_n_heads": 64,
        "index_head_dim": 128, "hc_mult": 4, "qk_rope_head_dim": 64,
    }, ("DeepseekV4ForCausalLM",)),
)  # fmt: skip
