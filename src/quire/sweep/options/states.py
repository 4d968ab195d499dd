"""Recurrent layers: groups, heads, kernels of convolutions, norms, and which layers are recurrent."""

from __future__ import annotations

from typing import Any

from quire.sweep.case import Case

LINEAR, FULL = "linear_attention", "full_attention"
GROWING = (3, 17, 40, 62, 90)
"""Prompts of requests with more outputs: beside large states, pages of tokens are small, and few make no difference."""
_MULTIPLIERS: dict[str, Any] = {
    "ssm_multipliers": [0.5, 1.5, 0.7, 1.3, 0.9], "ssm_in_multiplier": 1.2, "ssm_out_multiplier": 0.8,
    "attention_in_multiplier": 0.9, "attention_out_multiplier": 1.1, "key_multiplier": 0.6, "embedding_multiplier": 2.0,
    "lm_head_multiplier": 0.5, "mlp_multipliers": [0.7, 1.4],
}  # fmt: skip

_MAMBA = (
    Case("mamba", "short convolution", {"conv_kernel": 2, "state_size": 4}),
    Case("mamba", "biases", {"use_bias": True, "use_conv_bias": False}),
    Case("falcon_mamba", "long convolution", {"conv_kernel": 5}),
    Case("mamba2", "two groups", {"n_groups": 2, "chunk_size": 8}, is_quick=True),
    Case("mamba2", "few wide heads", {"num_heads": 4, "head_dim": 32, "conv_kernel": 3, "chunk_size": 16}),
    Case("mamba2", "times clamped", {"time_step_limit": (0.01, 0.3), "chunk_size": 16}),
    Case("jamba", "longer convolution", {"mamba_d_conv": 6, "mamba_d_state": 5, "mamba_dt_rank": 7}),
    Case("jamba", "biases", {"mamba_proj_bias": True, "mamba_conv_bias": False}),
    Case("jamba", "attention first", {"attn_layer_offset": 0}),
)

_HYBRIDS = (
    Case("bamba", "two groups", {"mamba_n_groups": 2, "mamba_chunk_size": 8}),
    Case("bamba", "attention in layer 2", {"attn_layer_indices": [2], "mamba_d_conv": 3}),
    Case("bamba", "biases", {"mamba_proj_bias": True, "mamba_conv_bias": False, "mlp_bias": True}),
    Case("falcon_h1", "norm before the gate", {
        "mamba_rms_norm": True, "mamba_chunk_size": 16, "num_hidden_layers": 2,
    }, is_quick=True),
    Case("falcon_h1", "norm after the gate", {"mamba_rms_norm": True, "mamba_norm_before_gate": False}),
    Case("falcon_h1", "norms of two groups", {"mamba_rms_norm": True, "mamba_n_groups": 2, "mamba_chunk_size": 8}),
    Case("falcon_h1", "multipliers", _MULTIPLIERS),
    Case("granitemoehybrid", "attention without positions", {"layer_types": ["mamba", "attention"] * 2}),
    Case("granitemoehybrid", "attention with positions", {
        "layer_types": ["attention", "mamba", "mamba", "attention"], "position_embedding_type": "rope",
    }),
    Case("granitemoehybrid", "no experts", {"num_local_experts": 0, "layer_types": ["mamba", "attention"] * 2}),
    Case("nemotron_h", "four groups", {"n_groups": 4, "conv_kernel": 3, "chunk_size": 8}),
    Case("nemotron_h", "times clamped", {"time_step_min": 0.3, "chunk_size": 16}),
    Case("bamba", "times clamped", {"time_step_limit": (0.01, 0.3), "mamba_chunk_size": 16}),
    Case("nemotron_h", "biases", {"use_bias": True, "mlp_bias": True, "attention_bias": True}),
    Case("nemotron_h", "experts in a latent space", {"moe_latent_size": 24}),
    Case("lfm2", "short convolution", {"conv_L_cache": 2}),
    Case("lfm2", "long convolution with biases", {"conv_L_cache": 5, "conv_bias": True}),
    Case("lfm2_moe", "attention last", {"layer_types": ["conv", "conv", "conv", FULL]}),
)  # fmt: skip

_DELTA = (
    Case("qwen3_next", "as many keys as values", {"linear_num_key_heads": 4}),
    Case("qwen3_next", "one key head", {"linear_num_key_heads": 1, "linear_key_head_dim": 24}),
    Case("qwen3_next", "short convolution", {"linear_conv_kernel_dim": 2, "linear_value_head_dim": 8}),
    Case("qwen3_next", "attention first", {"layer_types": [FULL, LINEAR, LINEAR, FULL]}),
    Case("qwen3_5_text", "narrow values", {"linear_value_head_dim": 12, "linear_conv_kernel_dim": 3}),
    Case("qwen3_5_moe_text", "as many keys as values", {"linear_num_key_heads": 4, "num_experts_per_tok": 1}),
    Case("kimi_linear", "odd heads", {
        "linear_num_heads": 3, "linear_head_dim": 24, "linear_conv_kernel_dim": 3,
    }, prompts=GROWING, outputs=64),
    Case("kimi_linear", "latents first", {"layer_types": [FULL, LINEAR, LINEAR, FULL]}),
)  # fmt: skip

CASES = (*_MAMBA, *_HYBRIDS, *_DELTA)
