"""Tiny configurations of any causal language model of transformers, for checks on random weights."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from transformers import CONFIG_MAPPING, PreTrainedConfig

from quire.core.errors import ModelError

Sizes = dict[str, object]
WINDOW = 19
"""Not a multiple of any page."""
SIZES: Sizes = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "sliding_window": WINDOW,
    "attention_chunk_size": WINDOW, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4, "num_experts_per_tok": 2,
    "num_experts_per_token": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
    "intermediate_size_mlp": 96, "shared_intermediate_size": 32, "n_group": 1, "topk_group": 1, "num_expert_group": 1,
    "moe_topk": 2, "moe_k": 2, "num_kv_heads": 2, "n_inner": 96, "ffn_dim": 96, "ffn_hidden_size": 96,
    "first_k_dense_replace": 1, "num_dense_layers": 1, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8, "v_head_dim": 16, "embedding_size": 64, "dropout": 0.0,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "linear_head_dim": 16, "linear_num_heads": 4,
    "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_num_heads": 8,
    "mamba_head_dim": 16, "ssm_state_size": 8, "state_size": 8, "n_groups": 1, "is_decoder": True,
    "word_embed_proj_dim": 64, "vocab_size_per_layer_input": 97, "hidden_size_per_layer_input": 8,
}  # fmt: skip
"""By field, where a configuration has it."""

LENGTHS = frozenset({
    "max_position_embeddings", "n_positions", "model_max_length", "original_max_position_embeddings", "sliding_window",
    "attention_chunk_size", "floor_scale",
})  # fmt: skip
"""Fields that name lengths at which a model changes its computation."""
_SHORT_SCANS: Sizes = {"chunk_size": 16, "mamba_chunk_size": 16}
"""Chunks of a twin's recurrences: single tokens are padded to these."""
_LISTS = ("layer_types", "mlp_layer_types", "indexer_types")
_NO_OPTIONS = frozenset({"dtype", "torch_dtype", "model_type", "transformers_version", "_name_or_path", "name_or_path"})

_HALF_WINDOWS: Sizes = {"layer_types": ["sliding_attention", "full_attention"] * 2}
_TWO_OF_EACH: Sizes = {"layer_types": ["linear_attention", "full_attention"] * 2}
_LATENT: Sizes = {"head_dim": 8, "num_key_value_heads": 4}
_INDEXED: Sizes = {**_LATENT, "index_topk": WINDOW, "index_head_dim": 16, "index_n_heads": 32}
_NEMOTRON = ["linear_attention", "moe", "full_attention", "mlp"] * 2
_SLIDES: Sizes = {"use_sliding_window": True, "max_window_layers": 2, "layer_types": None}
SPECIAL: dict[str, Sizes] = {
    "axk1": _LATENT,
    "bamba": {"attn_layer_indices": [1, 3]},
    "codegen": {"rotary_dim": 8},
    "cohere2_moe": {**_HALF_WINDOWS, "num_shared_experts": 1, "mlp_layer_types": ["dense"] + ["sparse"] * 3},
    "dbrx": {
        "d_model": 64,
        "n_heads": 4,
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 4.0},
        "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "deepseek_v32": _INDEXED,
    "dots1": {"n_shared_experts": 1, "n_routed_experts": 4, **_HALF_WINDOWS},
    "dots3_note": {"num_key_value_heads": 4},
    "dots3_note_text": {"num_key_value_heads": 4},
    "falcon_h1": {"mamba_d_ssm": 128},
    "falcon_mamba": {"intermediate_size": 128},
    "gemma3n": {"num_kv_shared_layers": 2, **_HALF_WINDOWS},
    "gemma3n_text": {"num_kv_shared_layers": 2, **_HALF_WINDOWS},
    "glm_moe_dsa": {**_INDEXED, "indexer_types": ["full", "shared"] * 2},
    "glm4_moe_lite": _LATENT,
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "num_layers": 4, "window_size": WINDOW},
    "gptj": {"rotary_dim": 8},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8, "mamba_dt_rank": 4},
    "kimi_linear": {**_TWO_OF_EACH, "num_key_value_heads": 4},
    "laguna": {**_HALF_WINDOWS, "mlp_layer_types": ["dense", "sparse"] * 2},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "longcat_flash": {**_LATENT, "num_layers": 2, "zero_expert_num": 2, "expert_ffn_hidden_size": 32},
    "mamba": {"intermediate_size": 128},
    "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 1, "state_size": 8},
    "mellum": {**_HALF_WINDOWS, "mlp_layer_types": ["sparse"] * 4},
    "mimo_v2_flash": {**_HALF_WINDOWS, "v_head_dim": 24, "num_key_value_heads": 1},
    "minicpm3": _LATENT,
    "minimax": {**_TWO_OF_EACH, "sliding_window": None},
    "nemotron_h": {"layers_block_type": _NEMOTRON, "sliding_window": None},
    "olmo_hybrid": _TWO_OF_EACH,
    "qwen2": _SLIDES,
    "qwen3": _SLIDES,
    "recurrent_gemma": {"block_types": ["recurrent", "attention"], "attention_window_size": WINDOW, "lru_width": 64},
    "xlnet": {"d_head": 16},
    "youtu": _LATENT,
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "n_mamba_heads": 8,
        "mamba_d_state": 8,
        "adapter_rank": 4,
        "use_mem_rope": True,
        "head_dim": 32,
        "num_key_value_heads": 4,
    },
    "zaya": {"num_experts_per_tok": 1},
}
"""By type: what its class needs in addition."""


def tiny_config(name: str) -> PreTrainedConfig:
    """A small configuration of the text part of type `name`, with at least two layers of each of its kinds."""
    if name.endswith("_assistant"):
        raise ModelError(f"{name} drafts for another model and reads that model's memory: it does not run alone")
    config = CONFIG_MAPPING[name]()
    text = config.get_text_config(decoder=True)
    made: Any = type(text)
    known = set(text.to_dict()) | set(text.attribute_map)
    sizes = {field: value for field, value in SIZES.items() if field in known}
    sizes |= SPECIAL[name] if name in SPECIAL else _layer_lists(text, known)
    tiny: PreTrainedConfig = made(**sizes)
    return tiny


def twin_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """A small model of the same type: with its options and named lengths, and the widths and depths of `tiny_config`.
    It has two layers of each of the model's kinds."""
    text = config.get_text_config(decoder=True)
    made: Any = type(text)
    given = text.to_dict()
    known = set(given) | set(text.attribute_map)
    sizes = {field: value for field, value in (SIZES | _SHORT_SCANS).items() if field in known - LENGTHS}
    sizes |= {field: value for field, value in SPECIAL.get(text.model_type, {}).items() if field not in LENGTHS}
    sizes |= _layer_lists(text, given)
    kept = {field: value for field, value in given.items() if field in LENGTHS or _is_option(field, value)}
    ropes = _resize_ropes(given, _rope_width(given), _rope_width(made(**sizes).to_dict()))
    twin: PreTrainedConfig = made(**{**kept, **sizes, **ropes})
    return twin


def _is_option(field: str, value: object) -> bool:
    """Integers and lists are sizes, everything else is an option."""
    return field not in _NO_OPTIONS and (value is None or isinstance(value, bool | float | str))


def _rope_width(fields: dict[str, Any]) -> int:
    """Numbers of a head that are rotated, before a part of them is selected."""
    own = fields.get("qk_rope_head_dim") or fields.get("head_dim")
    return int(own or fields.get("hidden_size", 1) // fields.get("num_attention_heads", 1))


def _resize_ropes(given: Sizes, width: int, small: int) -> Sizes:
    """Rotary parameters; lists of factors have one for each pair of rotated numbers."""

    def resize(name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {own: resize(own, one) for own, one in value.items()}
        wanted = max(1, len(value) * small // width) if name.endswith("factor") and isinstance(value, list) else 0
        return [value[place * len(value) // wanted] for place in range(wanted)] if wanted else value

    return {field: resize(field, given[field]) for field in ("rope_parameters", "rope_scaling") if given.get(field)}


def _layer_lists(text: PreTrainedConfig, known: Collection[str]) -> Sizes:
    """Lists of its kinds of layers in turn, for fields in `known`."""
    named = {
        field: list(dict.fromkeys(getattr(text, field, None) or ()))
        for field in _LISTS
        if field in known and not _is_computed(text, field)
    }
    layers = max(4, *(2 * len(kinds) for kinds in named.values()), 0)
    lists = {field: [kinds[layer % len(kinds)] for layer in range(layers)] for field, kinds in named.items() if kinds}
    return {**lists, "num_hidden_layers": layers} if lists else {}


def _is_computed(text: PreTrainedConfig, field: str) -> bool:
    """Whether the class computes `field` from others, so that it cannot be set."""
    computed = getattr(type(text), text.attribute_map.get(field, field), None)
    return isinstance(computed, property) and computed.fset is None
