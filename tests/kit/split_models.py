"""Types of models whose splits are tested, with tiny configurations."""

from __future__ import annotations

from typing import Any

from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from quire.worker.support.tiny import tiny_config

QUICK = ("llama", "qwen3_next", "gpt_oss")
SLOW = (
    "gemma3_text", "qwen3_moe", "deepseek_v3", "falcon_h1", "olmo2", "mixtral", "phi3", "llama4_text", "gpt2", "bloom",
    "mamba2", "kimi_linear", "minimax",
)  # fmt: skip
"""More of the same: `make soak` runs them."""


def config_of_type(name: str, **options: Any) -> Any:
    tiny: Any = tiny_config(name)
    config = type(tiny)(**{**tiny.to_dict(), **options}) if options else tiny
    config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[name]]
    return config
