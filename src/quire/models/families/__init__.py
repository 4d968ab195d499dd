"""One module for each group of like families, and the table that finds a family by its `model_type`."""

from __future__ import annotations

from quire.models.blueprint import Family
from quire.models.families import (
    attention,
    convolution,
    deepseek_v4,
    delta,
    dense,
    gemma,
    griffin,
    hybrid,
    jamba,
    latent,
    lightning,
    llama4,
    longcat,
    mimo,
    nemotron,
    older,
    recurrent,
    sparse,
    zamba,
)

_GROUPS = (
    attention, convolution, deepseek_v4, delta, dense, gemma, griffin, hybrid, jamba, latent, lightning, llama4,
    longcat, mimo, nemotron, older, recurrent, sparse, zamba,
)  # fmt: skip

FAMILIES: dict[str, Family] = {family.model_type: family for group in _GROUPS for family in group.FAMILIES}

TEXT_PARTS = {
    "gemma3": "gemma3_text", "gemma3n": "gemma3n_text", "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text", "llama4": "llama4_text", "mistral3": "mistral",
    "qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text", "kimi_k25": "kimi_k2",
}  # fmt: skip
"""Models with a vision tower, and the family of their text part where it does not name itself."""

ARCHITECTURES: dict[str, str] = {
    architecture: family.model_type for family in FAMILIES.values() for architecture in family.architectures
}
