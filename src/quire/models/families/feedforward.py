"""The part of a layer that remembers nothing: MLPs and experts. Only its weights matter here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quire.models.blueprint import Weights
from quire.models.fields import Fields
from quire.models.weights import experts, mlp, router

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
CHOSEN_EXPERTS = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "moe_k", "top_k_experts")
"""How configurations spell how many experts a layer has, and how many of them a token chooses."""


@dataclass(frozen=True, slots=True)
class FeedForward:
    """Weights of each layer's feed-forward part, and its widest activation."""

    per_layer: tuple[Weights, ...]
    width: int
    sparse: Weights
    """A layer with experts, as an MTP layer has them; the dense layer where the family has no experts."""


FeedForwardReader = Callable[[Fields, int, int], FeedForward]


def uniform(weights: Weights, layers: int, width: int) -> FeedForward:
    return FeedForward((weights,) * layers, width, weights)


def mixed(dense: Weights, sparse: Weights, is_sparse: list[bool], width: int) -> FeedForward:
    return FeedForward(tuple(sparse if flag else dense for flag in is_sparse), width, sparse)


def dense(fields: Fields, hidden: int, layers: int) -> FeedForward:
    width = fields.integer("intermediate_size")
    return uniform(mlp(hidden, width, fields.flag("mlp_bias")), layers, width)


def ungated(fields: Fields, hidden: int, layers: int) -> FeedForward:
    """Two matrices instead of three."""
    width = fields.integer("intermediate_size")
    return uniform(mlp(hidden, width, fields.flag("mlp_bias"), gated=False), layers, width)


def mixtral(fields: Fields, hidden: int, layers: int) -> FeedForward:
    """Experts in every layer, as wide as `intermediate_size`."""
    count = fields.integer("num_local_experts", "num_experts")
    width = fields.integer("intermediate_size")
    fields.raw("num_experts_per_tok")
    return uniform(experts(hidden, width, count) + router(hidden, count), layers, width)


def minimax_m2(fields: Fields, hidden: int, layers: int) -> FeedForward:
    """As Mixtral, and the router has a correction for each expert."""
    plain = mixtral(fields, hidden, layers)
    correction = Weights(replicated=fields.integer("num_local_experts", "num_experts"))
    return uniform(plain.sparse + correction, layers, plain.width)


def gpt_oss(fields: Fields, hidden: int, layers: int) -> FeedForward:
    """Experts and router have biases."""
    count = fields.integer("num_local_experts", "num_experts")
    width = fields.integer("intermediate_size")
    biases = Weights(plain=count * (2 * width + hidden))
    return uniform(experts(hidden, width, count) + biases + router(hidden, count, bias=True), layers, width)


def sparse_steps(fields: Fields, layers: int, has_experts: bool) -> list[bool]:
    """Qwen's rule: every `decoder_sparse_step`-th layer has experts unless `mlp_only_layers` names it."""
    step = fields.integer("decoder_sparse_step", absent=1)
    only_mlp = set(fields.integers("mlp_only_layers") or ())
    return [has_experts and layer not in only_mlp and (layer + 1) % step == 0 for layer in range(layers)]


def qwen_moe(fields: Fields, hidden: int, layers: int) -> FeedForward:
    """Routed experts, and in some generations one gated shared expert."""
    count = fields.integer("num_experts", "num_local_experts", minimum=0)
    width = fields.integer("moe_intermediate_size")
    shared = 0
    if "shared_expert_intermediate_size" in fields.defaults or "shared_expert_intermediate_size" in fields.config:
        shared = fields.integer("shared_expert_intermediate_size", minimum=0)
    sparse = experts(hidden, width, count) + router(hidden, count)
    if shared:
        sparse += mlp(hidden, shared) + Weights(replicated=hidden)
    is_sparse = sparse_steps(fields, layers, count > 0)
    if all(is_sparse):
        fields.raw("intermediate_size")
        return uniform(sparse, layers, max(width, shared))
    wide = fields.integer("intermediate_size")
    return mixed(mlp(hidden, wide), sparse, is_sparse, max(width, shared, wide))


def deepseek(correction: bool) -> FeedForwardReader:
    """Dense layers first, then routed and shared experts (DeepSeek, GLM, Kimi)."""

    def read(fields: Fields, hidden: int, layers: int) -> FeedForward:
        count = fields.integer("n_routed_experts", "num_experts", "num_local_experts")
        shared = fields.integer("n_shared_experts", "num_shared_experts", absent=0, minimum=0)
        width = fields.integer("moe_intermediate_size")
        wide = fields.integer("intermediate_size")
        sparse = experts(hidden, width, count) + router(hidden, count, bias=correction)
        if shared:
            sparse += mlp(hidden, width * shared)
        is_sparse = _dense_first(fields, layers)
        return mixed(mlp(hidden, wide), sparse, is_sparse, max(wide, width * max(shared, 1)))

    return read


def _dense_first(fields: Fields, layers: int) -> list[bool]:
    given = fields.kinds("mlp_layer_types", layers, {"dense": "dense", "sparse": "sparse"})
    if given is not None:
        fields.raw("first_k_dense_replace", "moe_layer_freq")
        return [kind == "sparse" for kind in given]
    first = fields.integer("first_k_dense_replace", minimum=0)
    step = fields.integer("moe_layer_freq", absent=1)
    return [layer >= first and layer % step == 0 for layer in range(layers)]
