"""Fields that nobody read: harmless, or a memory that we do not know?"""

from __future__ import annotations

from quire.core.errors import ModelError
from quire.models.fields import Fields, shown

_WORDS = (
    "cache", "window", "sliding", "chunk", "kv", "key_value", "state", "ssm", "mamba", "conv", "latent", "lora_rank",
    "attn", "attention", "layer_type", "block_type", "pattern", "index_", "compress", "head_dim", "heads", "sink",
    "shared", "mtp", "nextn", "linear_", "recurrent", "per_layer",
)  # fmt: skip

_NEUTRAL = frozenset((
    "activation_sparsity_pattern", "attention_bias", "attention_dropout", "attention_dropout_prob",
    "attention_in_multiplier", "attention_multiplier", "attention_out_multiplier",
    "attention_probs_dropout_prob", "attention_softmax_in_fp32", "attention_value_scale", "attn_bias",
    "attn_dropout", "attn_factor", "attn_implementation", "attn_logit_softcapping", "attn_output_gate",
    "attn_pdrop", "attn_rms_norm_eps", "attn_rotary_emb", "attn_scale", "attn_temperature_tuning",
    "audio_config", "cache_implementation", "chunk_size", "chunk_size_feed_forward", "clip_qkv",
    "compress_rope_theta", "conv_dim", "conv_dim_out", "conv_use_xavier_init", "flash_attention", "flash_attn",
    "full_attn_alpha_factor", "full_attn_beta_factor", "full_attn_mod", "hc_sinkhorn_iters",
    "head_dim_original", "index_topk", "index_topk_freq", "indexer_rope_interleave", "is_linear_attn",
    "key_multiplier", "keys_to_ignore_at_inference", "layernorm_full_attention_alpha",
    "layernorm_full_attention_beta", "layernorm_linear_attention_alpha", "layernorm_linear_attention_beta",
    "linear_attn_alpha_factor", "linear_attn_beta_factor", "mamba_act", "mamba_chunk_size", "mamba_conv_bias",
    "mamba_dt_init_floor", "mamba_dt_limit", "mamba_dt_max", "mamba_dt_min", "mamba_dt_rank",
    "mamba_hidden_act", "mamba_inner_layernorms", "mamba_norm_before_gate", "mamba_proj_bias", "mamba_rms_norm",
    "mamba_use_mlp", "max_window_layers", "mla_use_nope", "moe_shared_expert_overlap", "mtp_transformer_layers",
    "mtp_use_dedicated_embeddings", "num_attention_heads", "num_key_value_groups", "output_attentions",
    "output_hidden_states", "prune_heads", "pruned_heads", "qkv_bias", "quantization_config",
    "query_pre_attn_scalar", "reorder_and_upcast_attn", "residual_in_fp32", "rope_local_base_freq",
    "rope_parameters", "rope_scaling", "scale_attn_by_inverse_layer_idx", "scale_attn_weights",
    "shared_expert_gate", "shared_moe_mode", "sliding_window_pattern", "ssm_in_multiplier", "ssm_multipliers",
    "ssm_out_multiplier", "text_config", "tie_encoder_decoder", "use_attention_bias",
    "use_attention_sink_logits", "use_cache", "use_conv_bias", "use_flash_attention", "use_flash_attn",
    "use_kv_cache", "use_linear_silu", "use_mamba_kernels", "use_memory_efficient_attention", "use_mtp",
    "use_pos_enc", "use_qkv_bias", "use_sliding_window", "vision_config", "vocab_size_per_layer_input",
))  # fmt: skip

_MUST_NOT_BE_ZERO = ("window", "chunk")


def _is_off(name: str, value: object) -> bool:
    """Null, false, empty and zero switch a feature off, but a window or chunk of zero is a mistake."""
    if value is None or value is False or value == [] or value == {} or value == "":
        return True
    return value == 0 and not any(word in name for word in _MUST_NOT_BE_ZERO)


def _speaks_of_memory(name: str) -> bool:
    return any(word in name.lower() for word in _WORDS)


def refuse_unknown_memory(fields: Fields) -> None:
    for name, value in fields.unread().items():
        if _speaks_of_memory(name) and name not in _NEUTRAL and not _is_off(name, value):
            raise ModelError(
                f"{fields.prefix}{name} is {shown(value)}: {fields.family} is not known to have it and its name speaks "
                f"of memory; --ignore-field {name} skips it if you know that it does not touch memory"
            )
