"""Types of models whose splits are tested, with tiny configurations."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from quire.sweep.splits import LARGER
from quire.worker.support.tiny import tiny_config

QUICK = ("llama", "qwen3_next", "gpt_oss")
SLOW = (
    "gemma3_text", "qwen3_moe", "deepseek_v3", "falcon_h1", "olmo2", "mixtral", "phi3", "llama4_text", "gpt2", "bloom",
    "mamba2", "kimi_linear", "minimax",
)  # fmt: skip
"""More of the same: `make soak` runs them."""
DOCS = Path(__file__).parents[2] / "docs"
ALL = tuple(re.findall(r"^\| `([^`]+)` \| pass", (DOCS / "supported-models.md").read_text(), re.MULTILINE))
"""Types that run on one rank."""


def ways_of(name: str) -> list[tuple[int, int]]:
    """Ranks and stages that a type runs on, by the table of those that do not."""
    refused = re.search(rf"^\| `{name}` \| (.*) \| (.*) \|$", (DOCS / "splits.md").read_text(), re.MULTILINE)
    on_ranks, on_stages = (cell == "runs" for cell in refused.groups()) if refused else (True, True)
    return [(2, 1)] * on_ranks + [(1, 2)] * on_stages + [(2, 2)] * (on_ranks and on_stages)


def config_of_type(name: str, **options: Any) -> Any:
    tiny: Any = tiny_config(name)
    options = {**LARGER.get(name, {}), **options}
    config = type(tiny)(**{**tiny.to_dict(), **options}) if options else tiny
    config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[name]]
    return config
