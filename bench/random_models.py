"""Models with random weights for benches on a GPU, from the sizes of well-known ones."""

from __future__ import annotations

import json
from typing import Any

import torch
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from quire.models.read import read_config
from quire.models.shape import ModelShape
from quire.worker.model import build

_LLAMA = {"model_type": "llama", "vocab_size": 128_256, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5}
SHAPES: dict[str, dict[str, Any]] = {
    "Llama-3.2-1B": _LLAMA | {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 64, "tie_word_embeddings": True,
    },
    "Llama-3.1-8B": _LLAMA | {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": False,
    },
    "Gemma-3-12B": {
        "model_type": "gemma3_text", "vocab_size": 262_208, "hidden_size": 3840, "intermediate_size": 15360,
        "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256,
        "sliding_window": 1024, "max_position_embeddings": 131_072, "query_pre_attn_scalar": 256,
    },
    "Qwen3-Next, 16 layers": {
        "model_type": "qwen3_next", "vocab_size": 151_936, "hidden_size": 2048, "intermediate_size": 5120,
        "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
        "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "max_position_embeddings": 262_144,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
    },
}  # fmt: skip


def config_of(name: str, **sizes: Any) -> Any:
    fields = SHAPES[name] | sizes
    return AutoConfig.for_model(**fields)


def shape_of(config: Any) -> ModelShape:
    architecture = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]
    return read_config({**json.loads(config.to_json_string()), "architectures": [architecture]}, config.model_type)


def model_of(config: Any, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> Any:
    with torch.device(device):
        return build(config, dtype).eval()


def weights_read(model: Any, tokens: int) -> float:
    """Bytes that a step of so many tokens reads: rows of the embedding alone, unless it is the output's table too, and
    of experts those that some token is likely to choose."""
    config = model.config
    experts, chosen = getattr(config, "num_experts", 0), getattr(config, "num_experts_per_tok", 0)
    touched = 1 - (1 - chosen / experts) ** tokens if experts else 1.0
    total = 0.0
    for name, part in model.named_parameters():
        if "embed_tokens" in name and not config.tie_word_embeddings:
            continue
        total += part.numel() * part.element_size() * (touched if ".experts." in name else 1.0)
    return total
