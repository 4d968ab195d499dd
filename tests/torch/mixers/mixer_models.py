"""Tiny random models with latents or recurrent states, and what transformers yields with them, one prompt at a time."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from quire.models.read import read_config
from quire.models.shape import ModelShape
from quire.worker.model.model import build

OUTPUTS = 8
PROMPT_LENGTHS = (1, 10, 14, 16, 22, 30, 37, 49)

BASE = {
    "vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 4, "max_position_embeddings": 512, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": None,
}  # fmt: skip
HEADS = BASE | {"intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
LATENT = BASE | {
    "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 32,
    "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 12, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "n_shared_experts": 1, "first_k_dense_replace": 2, "n_group": 1, "topk_group": 1,
}  # fmt: skip
INDEXED = LATENT | {"index_topk": 9, "index_head_dim": 16, "index_n_heads": 32}
"""With few index heads, scores of exactly zero would be common, and which of them is selected is not defined."""
MAMBA2 = {
    "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 8, "mamba_d_conv": 4,
    "mamba_chunk_size": 16, "mamba_expand": 2,
}  # fmt: skip
MAMBA1 = {"state_size": 8, "conv_kernel": 4, "expand": 2, "time_step_rank": 4}
DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": 4, "layer_types": ["linear_attention", "full_attention"] * 2,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
SHARED = EXPERTS | {"shared_expert_intermediate_size": 32}
CONVOLUTION = {"layer_types": ["conv", "full_attention"] * 2, "conv_L_cache": 3}

CONFIGS: dict[str, dict[str, Any]] = {
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
    "deepseek_v32": INDEXED,
    "glm_moe_dsa": INDEXED | {"indexer_types": ["full", "shared", "full", "shared"]},
    "qwen3_next": HEADS | DELTA | SHARED,
    "mamba2": BASE | {
        "num_heads": 8, "head_dim": 16, "n_groups": 2, "state_size": 8, "conv_kernel": 4, "chunk_size": 16, "expand": 2,
    },
    "bamba": HEADS | MAMBA2 | {"attn_layer_indices": [1, 3]},
    "falcon_h1": HEADS | MAMBA2 | {"num_hidden_layers": 2, "mamba_d_ssm": 128, "mamba_rms_norm": True},
    "granitemoehybrid": HEADS | MAMBA2 | {
        "layer_types": ["mamba", "attention"] * 2, "num_local_experts": 4, "num_experts_per_tok": 2,
        "shared_intermediate_size": 64,
    },
    "nemotron_h": HEADS | {
        "layers_block_type": ["mamba", "attention", "mlp", "mamba", "attention", "moe"], "num_hidden_layers": 6,
        "mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 8, "conv_kernel": 4,
        "chunk_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "moe_shared_expert_intermediate_size": 32,
    },
    "lfm2": HEADS | CONVOLUTION,
    "jamba": HEADS | {
        "mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": 4, "num_experts": 2,
        "num_experts_per_tok": 1, "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2,
        "expert_layer_offset": 1,
    },
    "kimi_linear": LATENT | {
        "layer_types": ["linear_attention", "full_attention"] * 2, "linear_num_heads": 4, "linear_head_dim": 8,
        "linear_conv_kernel_dim": 4,
    },
}  # fmt: skip

RELATIVES: dict[str, dict[str, Any]] = {
    "qwen3_5_text": HEADS | DELTA,
    "qwen3_5_moe_text": HEADS | DELTA | SHARED,
    "lfm2_moe": HEADS | CONVOLUTION | EXPERTS | {"num_dense_layers": 1},
    "mamba": BASE | MAMBA1,
    "falcon_mamba": BASE | MAMBA1,
}
"""Other classes of the same forms."""


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    prompt: np.ndarray
    tokens: list[int]
    logits: list[torch.Tensor]
    """Before each of the tokens."""


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    name: str
    shape: ModelShape
    model: Any
    """The reference's weights, on Quire's attention."""
    expected: list[Expected]


@cache
def make_case(name: str, **changes: Any) -> Case:
    fields = (CONFIGS | RELATIVES)[name] | changes
    torch.manual_seed(0)
    config = CONFIG_MAPPING[name](**fields)
    reference = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    _roughen(reference)
    model = build(CONFIG_MAPPING[name](**fields), torch.float32)
    model.load_state_dict(reference.state_dict())
    shape = read_config(json.loads(config.to_json_string()), name)
    random = np.random.default_rng(0)
    prompts = [random.integers(2, 97, length).astype(np.int32) for length in PROMPT_LENGTHS]
    return Case(name, shape, model, [_expect(reference, prompt) for prompt in prompts])


def _roughen(model: Any) -> None:
    """Weights large enough that tokens differ from step to step."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "conv" not in name:
                parameter.mul_(2)


def _expect(reference: Any, prompt: np.ndarray) -> Expected:
    given = torch.from_numpy(prompt.astype(np.int64))[None]
    out = reference.generate(
        given, attention_mask=torch.ones_like(given), max_new_tokens=OUTPUTS, do_sample=False, eos_token_id=None,
        pad_token_id=0, use_cache=True, return_dict_in_generate=True, output_logits=True,
    )  # fmt: skip
    return Expected(prompt, out.sequences[0, len(prompt) :].tolist(), [logits[0] for logits in out.logits])
