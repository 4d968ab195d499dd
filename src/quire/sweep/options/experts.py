"""How experts are chosen and weighed, which layers have them, and what is shared beside them."""

from __future__ import annotations

from collections.abc import Iterator

from quire.sweep.case import Case


def _chosen() -> Iterator[Case]:
    for name in ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "gpt_oss", "granitemoe"):
        for count in (1, 4):
            yield Case(name, f"{count} of 4 experts", {"num_experts_per_tok": count},
                       is_quick=(name, count) == ("qwen2_moe", 4))  # fmt: skip
    yield Case("mixtral", "2 of 3 experts", {"num_local_experts": 3})
    yield Case("llama4_text", "1 of 4 experts", {"num_experts_per_tok": 1})
    yield Case("deepseek_v3", "3 of 8 experts", {"n_routed_experts": 8, "num_experts_per_tok": 3})
    yield Case("hunyuan_v1_moe", "3 of 6 experts", {"num_experts": 6, "moe_topk": 3})
    yield Case("ernie4_5_moe", "3 of 6 experts", {"moe_num_experts": 6, "moe_k": 3})


_WEIGHED = (
    Case("qwen2_moe", "weights add up to one", {"norm_topk_prob": True}),
    Case("qwen3_moe", "weights add up to one", {"norm_topk_prob": True}),
    Case("olmoe", "weights add up to one", {"norm_topk_prob": True}),
    Case("deepseek_v3", "weights as they are", {"norm_topk_prob": False, "routed_scaling_factor": 3.0}),
    Case("deepseek_v3", "experts in groups", {"n_routed_experts": 8, "n_group": 4, "topk_group": 2}, is_quick=True),
    Case("deepseek_v2", "experts in groups", {
        "topk_method": "group_limited_greedy", "n_routed_experts": 8, "n_group": 4, "topk_group": 2,
        "num_experts_per_tok": 2, "routed_scaling_factor": 2.0,
    }),
    Case("glm4_moe", "experts in groups", {"n_routed_experts": 8, "n_group": 2, "topk_group": 1}),
    Case("dots1", "weights add up to one", {"norm_topk_prob": True, "routed_scaling_factor": 2.0}),
    Case("exaone_moe", "weights as they are", {"norm_topk_prob": False}),
    Case("lfm2_moe", "no bias of experts", {"use_expert_bias": False, "norm_topk_prob": False}),
    Case("laguna", "soft cap of the router", {"moe_router_logit_softcapping": 1.5, "moe_routed_scaling_factor": 2.0}),
    Case("gpt_oss", "clipped experts", {"swiglu_limit": 0.5, "swiglu_alpha": 1.2}),
    Case("kimi_linear", "weights as they are", {"moe_renormalize": False}),
    Case("nemotron_h", "weights as they are", {"norm_topk_prob": False, "routed_scaling_factor": 3.0}),
    Case("beam", "weights as they are", {"norm_topk_prob": False, "routed_scaling_factor": 1.0}),
)  # fmt: skip

_PLACED = (
    Case("qwen2_moe", "experts in every second layer", {"decoder_sparse_step": 2}),
    Case("qwen3_moe", "two dense layers", {"mlp_only_layers": [0, 3]}),
    Case("deepseek_v3", "no dense layer", {"first_k_dense_replace": 0}),
    Case("deepseek_v3", "three dense layers", {"first_k_dense_replace": 3}),
    Case("deepseek_v2", "two dense layers", {"first_k_dense_replace": 2, "n_shared_experts": 1}),
    Case("glm4_moe", "no dense layer, two shared", {"first_k_dense_replace": 0, "n_shared_experts": 2}),
    Case("llama4_text", "experts in every second layer", {"interleave_moe_layer_step": 2, "moe_layers": None}),
    Case("jamba", "experts in the first of two", {"expert_layer_offset": 0}),
    Case("ernie4_5_moe", "experts in two layers", {"moe_layer_start_index": 1, "moe_layer_end_index": 2}),
    Case("flint", "one dense layer", {"mlp_only_layers": [1]}),
    Case("hy_v3", "two dense layers at the end", {"mlp_layer_types": ["sparse", "sparse", "dense", "dense"]}),
    Case("lfm2_moe", "no dense layer", {"num_dense_layers": 0}),
    Case("afmoe", "two dense layers", {"num_dense_layers": 2}),
    Case("dots1", "two dense layers, two shared", {"first_k_dense_replace": 2, "n_shared_experts": 2}),
    Case("granitemoeshared", "a wide shared expert", {"shared_intermediate_size": 80}),
    Case("aria_text", "one shared expert", {"moe_num_shared_experts": 1}),
    Case("qwen3_next", "experts in every second layer", {"decoder_sparse_step": 2}),
)

CASES = (*_chosen(), *_WEIGHED, *_PLACED)
