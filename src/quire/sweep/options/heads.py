"""Heads of odd sizes and numbers, biases, norms of queries and keys, soft caps, multipliers, tied embeddings."""

from __future__ import annotations

from typing import Any

from quire.sweep.case import Case

_MULTIPLIERS: dict[str, Any] = {
    "attention_multiplier": 0.4, "embedding_multiplier": 3.0, "residual_multiplier": 0.6, "logits_scaling": 2.0,
}  # fmt: skip

_SIZES = (
    Case("llama", "heads of 8", {"head_dim": 8}),
    Case("llama", "heads of 40", {"head_dim": 40}),
    Case("llama", "heads of 80, wider than the model", {"head_dim": 80}),
    Case("qwen3", "heads of 96", {"head_dim": 96}),
    Case("mistral", "heads of 24", {"head_dim": 24}),
    Case("gemma", "heads of 192", {"head_dim": 192}),
    Case("llama", "one key head for all", {"num_key_value_heads": 1}),
    Case("llama", "as many key heads as queries", {"num_key_value_heads": 4}),
    Case("qwen2", "three queries a key head", {"num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 96}),
    Case("gemma3_text", "one key head for all", {"num_key_value_heads": 1, "head_dim": 32}),
    Case("gpt_oss", "eight queries a key head", {"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 8}),
    Case("gpt_bigcode", "every head its own keys", {"multi_query": False}),
    Case("laguna", "query heads by layer", {"num_attention_heads_per_layer": [4, 8, 2, 6]}, is_quick=True),
    Case("laguna", "gates per element", {"gating": "per-element"}),
    Case("opt", "narrow embeddings", {"word_embed_proj_dim": 32}, is_quick=True),
    Case("opt", "norms after the layers' parts", {"do_layer_norm_before": False, "word_embed_proj_dim": 32}),
    Case("opt", "no biases", {"enable_bias": False}),
    Case("deepseek_v3", "values wider than keys", {"v_head_dim": 40, "qk_nope_head_dim": 8}),
    Case("deepseek_v3", "queries without a rank", {"q_lora_rank": None}),
    Case("deepseek_v2", "queries without a rank", {"q_lora_rank": None, "kv_lora_rank": 40}),
    Case("kimi_linear", "wide latents", {"kv_lora_rank": 48, "qk_rope_head_dim": 16, "v_head_dim": 8}),
    Case("gemma4_text", "full heads of 48", {"per_layer_config": {"1": {"head_dim": 48}, "3": {"head_dim": 48}}}),
    Case(
        "gemma4_text",
        "keys are values",
        {
            "attention_k_eq_v": True,
            "per_layer_config": {layer: {"head_dim": 32, "num_key_value_heads": 1} for layer in "13"},
        },
    ),
)

_BIASES = (
    Case("llama", "biases", {"attention_bias": True, "mlp_bias": True}),
    Case("qwen2_moe", "no biases", {"qkv_bias": False}),
    Case("seed_oss", "all biases", {"attention_bias": True, "attention_out_bias": True, "mlp_bias": True}),
    Case("starcoder2", "no biases", {"use_bias": False}),
    Case("ernie4_5", "biases", {"use_bias": True}),
    Case("gpt_neox", "no biases", {"attention_bias": False}),
    Case("stablelm", "biases", {"use_qkv_bias": True}),
    Case("glm4", "no biases", {"attention_bias": False}),
    Case("jais2", "no biases", {"attention_bias": False, "mlp_bias": False}),
    Case("phimoe", "biases", {"attention_bias": True, "lm_head_bias": True}),
    Case("gpt_oss", "no biases", {"attention_bias": False}),
    Case("cohere2", "biases", {"attention_bias": True}),
)

_NORMS = (
    Case("cohere", "norms of queries and keys", {"use_qk_norm": True}),
    Case("glm4_moe", "norms of queries and keys", {"use_qk_norm": True, "first_k_dense_replace": 1}),
    Case("stablelm", "norms of queries and keys", {"qk_layernorm": True}),
    Case("phi", "norms of queries and keys", {"qk_layernorm": True}),
    Case("persimmon", "no norms of queries and keys", {"qk_layernorm": False}),
    Case("llama4_text", "no norms of queries and keys", {"use_qk_norm": False}),
    Case("olmo", "clipped", {"clip_qkv": 0.8}),
    Case("olmoe", "clipped", {"clip_qkv": 0.5}),
    Case("hyperclovax", "no norms after parts", {"use_post_norm": False}),
    Case("gpt_neox", "parts one after the other", {"use_parallel_residual": False}),
    Case("stablelm", "parts side by side", {"use_parallel_residual": True}),
)

_SCORES = (
    Case("gemma2", "low soft caps", {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}, is_quick=True),
    Case("gemma2", "no soft caps", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    Case("gemma2", "another scale", {"query_pre_attn_scalar": 4}),
    Case("gemma3_text", "soft caps", {"attn_logit_softcapping": 1.0, "final_logit_softcapping": 2.0}),
    Case("vaultgemma", "low soft caps", {"attn_logit_softcapping": 1.5, "query_pre_attn_scalar": 7}),
    Case("gemma3n_text", "low soft cap", {"final_logit_softcapping": 4.0, "altup_num_inputs": 2}),
    Case("granite", "multipliers", _MULTIPLIERS),
    Case("granitemoe", "multipliers", _MULTIPLIERS),
    Case("granitemoeshared", "multipliers", _MULTIPLIERS),
    Case("hyperclovax", "multipliers", _MULTIPLIERS),
    Case("cohere", "logits scaled", {"logit_scale": 0.5}),
    Case("nanochat", "low soft cap", {"final_logit_softcapping": 2.0}),
    Case("gpt2", "scaled by layer", {"scale_attn_by_inverse_layer_idx": True}),
    Case("gpt2", "not scaled", {"scale_attn_weights": False}),
    Case("gpt2", "scores in fp32", {"reorder_and_upcast_attn": True}),
    Case("biogpt", "embeddings not scaled", {"scale_embedding": False}),
    Case("afmoe", "scaled embeddings", {"mup_enabled": True}),
)

_EMBEDDINGS = (
    Case("llama", "tied", {"tie_word_embeddings": True}),
    Case("qwen3", "tied", {"tie_word_embeddings": True}),
    Case("gemma2", "untied", {"tie_word_embeddings": False}),
    Case("cohere2", "untied", {"tie_word_embeddings": False}),
    Case("gpt2", "untied", {"tie_word_embeddings": False}),
    Case("mamba", "untied", {"tie_word_embeddings": False}),
)

CASES = (*_SIZES, *_BIASES, *_NORMS, *_SCORES, *_EMBEDDINGS)
