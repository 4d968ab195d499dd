"""Older families: ALiBi with any number of heads, layouts of Falcon, windows of GPT-Neo; and some newer mixes."""

from __future__ import annotations

from quire.sweep.case import Case

NEWER = {"new_decoder_architecture": True, "num_kv_heads": 2}
CLIPPED = {"clip_qkv": 0.5, "softmax_scale": 0.1}

_SLOPES = (
    Case("bloom", "six heads", {"n_head": 6, "hidden_size": 96}),
    Case("bloom", "one head", {"n_head": 1}),
    Case("bloom", "residuals after norms", {"apply_residual_connection_post_layernorm": True}),
    Case("bloom", "4,100 tokens", {}, (4100, 61, 300), 30, 4130, batch_tokens=512),
    Case("mpt", "six heads", {"n_heads": 6, "d_model": 96}),
    Case("mpt", "clipped, another scale", {"attn_config": CLIPPED}),
    Case("mpt", "1,900 tokens", {}, (1900, 61, 300), 30, 1930, batch_tokens=512),
)

_FALCON = (
    Case("falcon", "groups of queries", NEWER),
    Case("falcon", "groups of queries, one norm", {**NEWER, "num_ln_in_parallel_attn": 1}),
    Case("falcon", "every head its own keys", {"multi_query": False, "num_kv_heads": 4}),
    Case("falcon", "parts one after the other, biases", {"parallel_attn": False, "bias": True}),
)

_OTHERS = (
    Case("gpt_neo", "window of 7", {"window_size": 7}),
    Case("gpt_neo", "layers gggl", {
        "attention_types": [[["global"], 3], [["local"], 1]], "attention_layers": ["global"] * 3 + ["local"],
    }),
    Case("gptj", "all of a head is turned", {"rotary_dim": 16}),
    Case("codegen", "four numbers are turned", {"rotary_dim": 4}),
    Case("xglm", "embeddings not scaled", {"scale_embedding": False}),
    Case("dbrx", "weights as they are", {
        "ffn_config": {"ffn_hidden_size": 40, "moe_num_experts": 3, "moe_top_k": 3,
                       "moe_normalize_expert_weights": None},
    }),
    Case("jetmoe", "three of four experts", {"num_experts_per_tok": 3}),
    Case("cohere2_moe", "experts by sigmoid, shared ones added", {
        "expert_selection_fn": "sigmoid", "shared_expert_combination_strategy": "sum", "rms_norm_eps": 1e-5,
    }),
    Case("mimo_v2_flash", "window of 5", {"sliding_window": 5, "attention_bias": True}),
    Case("mimo_v2_flash", "values not scaled", {"attention_value_scale": None}),
    Case("minicpm3", "no scales, values of their own width", {
        "scale_depth": None, "dim_model_base": None, "v_head_dim": 40, "q_lora_rank": None,
    }),
    Case("longcat_flash", "no idle experts", {"zero_expert_num": 0}),
    Case("youtu", "rotary numbers in halves", {"rope_interleave": False}),
    Case("glm4_moe_lite", "experts in groups", {"n_routed_experts": 8, "n_group": 4, "topk_group": 2}),
    Case("olmo_hybrid", "eigenvalues not negative", {"linear_allow_neg_eigval": False}),
    Case("olmo_hybrid", "no rotary positions", {"rope_parameters": {"rope_type": "default", "rope_theta": None}}),
    Case("minimax", "linear layers last", {
        "layer_types": ["full_attention", "linear_attention"] * 2, "linear_attn_alpha_factor": 0.7,
    }),
    Case("minimax", "1,000 tokens", {}, (1000, 61, 300), 30, 1030, batch_tokens=256),
    Case("recurrent_gemma", "a wide recurrence, a short convolution", {"lru_width": 128, "conv1d_width": 2}),
    Case("recurrent_gemma", "window of 5", {"attention_window_size": 5, "attention_bias": True}),
    Case("zamba2", "two blocks, changed for each layer", {
        "num_mem_blocks": 2, "use_shared_attention_adapter": True, "layers_block_type": ["hybrid"] * 4,
        "hybrid_layer_ids": [0, 1, 2, 3],
    }),
    Case("zamba2", "two groups, biases, no positions", {
        "mamba_ngroups": 2, "add_bias_linear": True, "use_mem_rope": False,
    }),
    Case("internlm3", "biases", {"attention_bias": True, "mlp_bias": True}),
)  # fmt: skip

CASES = (*_SLOPES, *_FALCON, *_OTHERS)
