"""A GGUF file's metadata → the config.json that transformers reads, for each architecture.

What a file does not state follows from its architecture, as in llama.cpp: Gemma's windows, the layers of SmolLM3
without positions, the scale of Gemma's queries.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from quire.core.errors import ModelError
from quire.worker.weights.gguf_facts import Facts
from quire.worker.weights.gguf_ropes import read_rope

EMBEDDING, HEAD = "token_embd.weight", "output.weight"
Config = dict[str, Any]


def read_config(facts: Facts) -> Config:
    """Without what the weights are stored as."""
    own = CONFIGS.get(facts.architecture)
    if own is None:
        known = ", ".join(CONFIGS)
        raise ModelError(
            f"{facts.name} is of architecture {facts.architecture}, read are {known}: give safetensors of this model"
        )
    shared = _common(facts)
    return shared | own(facts)


def _common(facts: Facts) -> Config:
    width, heads = facts.number("embedding_length"), facts.number("attention.head_count")
    rope, head = read_rope(facts), facts.number("attention.key_length", width // max(1, heads))
    if facts.number("attention.value_length", head) != head:
        raise facts.wrong("attention.value_length", "other than attention.key_length")
    if facts.architecture != "phi3" and facts.number("rope.dimension_count", head) != head:
        raise facts.wrong("rope.dimension_count", f"other than the head's {head}")
    return {
        "vocab_size": facts.shape(EMBEDDING)[0],
        "hidden_size": width,
        "intermediate_size": facts.number("feed_forward_length", 0),
        "num_hidden_layers": _layers(facts),
        "num_attention_heads": heads,
        "num_key_value_heads": facts.number("attention.head_count_kv", heads),
        "head_dim": head,
        "hidden_act": "silu",
        "max_position_embeddings": facts.number("context_length"),
        "rms_norm_eps": facts.real("attention.layer_norm_rms_epsilon"),
        "rope_theta": rope["rope_theta"],
        "rope_parameters": rope,
        "tie_word_embeddings": not facts.has(HEAD),
        "bos_token_id": facts.fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": facts.fields.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": facts.fields.get("tokenizer.ggml.padding_token_id"),
    }


def _layers(facts: Facts) -> int:
    """As many as there are tensors for: no list is made for more."""
    stated = facts.number("block_count")
    found = {int(name.split(".")[1]) for name in facts.tensors if re.match(r"blk\.\d+\.", name)}
    if found != set(range(len(found))) or stated != len(found):
        raise ModelError(f"{facts.name} states {stated:,} layers and has tensors of {len(found):,}: is the file whole?")
    return stated


def _named(model_type: str, model_class: str) -> Config:
    return {"architectures": [f"{model_class}ForCausalLM"], "model_type": model_type}


def _experts(facts: Facts) -> Config:
    count, used = facts.number("expert_count"), facts.number("expert_used_count")
    return {"num_experts": count, "num_local_experts": count, "num_experts_per_tok": used}


def _expert_width(facts: Facts) -> int:
    """The tensor has it in any case; the field is missing in old files."""
    return facts.shape("blk.0.ffn_down_exps.weight")[-1]


def _biases(facts: Facts) -> Config:
    return {"attention_bias": facts.has("blk.0.attn_q.bias"), "mlp_bias": facts.has("blk.0.ffn_gate.bias")}


def _llama(facts: Facts) -> Config:
    """Llama, and Mistral and Mixtral, whose files have the same name of architecture."""
    if facts.number("expert_count", 0):
        config = _named("mixtral", "Mixtral") | _experts(facts)
        return config | {"intermediate_size": _expert_width(facts), "sliding_window": None}
    if window := facts.number("attention.sliding_window", 0):
        return _named("mistral", "Mistral") | {"sliding_window": window}
    return _named("llama", "Llama") | _biases(facts)


def _qwen2(_facts: Facts) -> Config:
    return _named("qwen2", "Qwen2") | {"use_sliding_window": False}


def _qwen3(facts: Facts) -> Config:
    return _named("qwen3", "Qwen3") | {"use_sliding_window": False, "attention_bias": _biases(facts)["attention_bias"]}


def _sparse_qwen(facts: Facts) -> Config:
    routed = {"decoder_sparse_step": 1, "mlp_only_layers": [], "use_sliding_window": False}
    return routed | _experts(facts) | {"moe_intermediate_size": _expert_width(facts)}


def _qwen2moe(facts: Facts) -> Config:
    shared = facts.shape("blk.0.ffn_down_shexp.weight")[-1]
    config = _named("qwen2_moe", "Qwen2Moe") | _sparse_qwen(facts)
    return config | {"shared_expert_intermediate_size": shared, "norm_topk_prob": False, "qkv_bias": True}


def _qwen3moe(facts: Facts) -> Config:
    return _named("qwen3_moe", "Qwen3Moe") | _sparse_qwen(facts) | {"norm_topk_prob": True, "attention_bias": False}


def _query_scalar(facts: Facts, layers_of_27b: int) -> int:
    """Queries are divided by its square root. Only the 27B models divide by another width than the head's."""
    if facts.number("block_count") == layers_of_27b:
        return facts.number("embedding_length") // facts.number("attention.head_count")
    return facts.number("attention.key_length")


def _windows(facts: Facts, period: int) -> Config:
    """The last layer of each `period` is full, unless the file has a list of those with a window."""
    layers, pattern = facts.number("block_count"), facts.raw("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        has_window = [bool(one) for one in pattern[:layers]]
    else:
        period = pattern or period
        has_window = [(layer + 1) % period != 0 for layer in range(layers)]
    return {
        "sliding_window": facts.number("attention.sliding_window", 4096),
        "layer_types": ["sliding_attention" if one else "full_attention" for one in has_window],
    }


def _gemma2(facts: Facts) -> Config:
    return (
        _named("gemma2", "Gemma2")
        | _windows(facts, 2)
        | {
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": _query_scalar(facts, 46),
            "attn_logit_softcapping": facts.real("attn_logit_softcapping", 50.0),
            "final_logit_softcapping": facts.real("final_logit_softcapping", 30.0),
        }
    )


def _gemma3(facts: Facts) -> Config:
    """Scaled positions are those of full layers; layers with a window have a base of their own."""
    near = facts.real("rope.freq_base_swa", 10_000.0)
    has_window = bool(facts.number("attention.sliding_window", 0))
    windows = _windows(facts, 6) if has_window else _windows(facts, 1) | {"sliding_window": None}
    whole = read_rope(facts)
    return (
        _named("gemma3_text", "Gemma3")
        | windows
        | {
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": _query_scalar(facts, 62),
            "attn_logit_softcapping": None,
            "final_logit_softcapping": facts.raw("final_logit_softcapping") or None,
            "rope_theta": whole["rope_theta"],
            "rope_local_base_freq": near,
            "rope_parameters": {
                "full_attention": whole,
                "sliding_attention": {"rope_type": "default", "rope_theta": near},
            },
        }
    )


def _phi3(facts: Facts) -> Config:
    """A window of 0 means none (Phi 4)."""
    width = facts.number("embedding_length") // facts.number("attention.head_count")
    part = facts.number("rope.dimension_count", width) / width
    limit = facts.number("context_length")
    return _named("phi3", "Phi3") | {
        "sliding_window": facts.number("attention.sliding_window", 0) or None,
        "original_max_position_embeddings": facts.number("rope.scaling.original_context_length", limit),
        "partial_rotary_factor": part,
        "rope_parameters": read_rope(facts) | {"partial_rotary_factor": part},
    }


def _granite(facts: Facts) -> Config:
    if facts.raw("rope.scaling.finetuned") is False:
        raise facts.wrong("rope.scaling.finetuned", "false, a model without positions")
    return (
        _named("granite", "Granite")
        | _biases(facts)
        | {
            "attention_multiplier": facts.real("attention.scale", 1.0),
            "embedding_multiplier": facts.real("embedding_scale", 1.0),
            "residual_multiplier": facts.real("residual_scale", 1.0),
            "logits_scaling": facts.real("logit_scale", 1.0),
        }
    )


def _smollm3(facts: Facts) -> Config:
    layers = facts.number("block_count")
    return (
        _named("smollm3", "SmolLM3")
        | _biases(facts)
        | {
            "no_rope_layer_interval": 4,
            "no_rope_layers": [int((layer + 1) % 4 != 0) for layer in range(layers)],
            "use_sliding_window": False,
            "layer_types": ["full_attention"] * layers,
        }
    )


def _gpt_oss(facts: Facts) -> Config:
    """Its frequencies are not rounded to whole dimensions, which no field says."""
    config = _named("gpt_oss", "GptOss") | _experts(facts) | _windows(facts, 2)
    rope = read_rope(facts)
    if rope["rope_type"] == "yarn":
        rope["truncate"] = False
    return config | {
        "intermediate_size": _expert_width(facts),
        "attention_bias": True,
        "rope_parameters": rope,
    }


CONFIGS: dict[str, Callable[[Facts], Config]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen2moe": _qwen2moe,
    "qwen3": _qwen3,
    "qwen3moe": _qwen3moe,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi3": _phi3,
    "granite": _granite,
    "smollm3": _smollm3,
    "gpt-oss": _gpt_oss,
}
"""By `general.architecture`."""
