"""Names of the ways in which families of models write tool calls. `quire.text.dialects.table` says what each is."""

from __future__ import annotations

from enum import Enum


class ToolDialect(str, Enum):
    JSON = "json"
    """For templates that are not recognised: `<tool_call>` with JSON, or one JSON object."""
    HERMES = "hermes"
    QWEN3_CODER = "qwen3-coder"
    LLAMA3 = "llama3"
    LLAMA4 = "llama4"
    MISTRAL = "mistral"
    MISTRAL_ARGS = "mistral-args"
    DEEPSEEK_V3 = "deepseek-v3"
    DEEPSEEK_V31 = "deepseek-v3.1"
    DEEPSEEK_V32 = "deepseek-v3.2"
    DEEPSEEK_V4 = "deepseek-v4"
    GLM = "glm-4.5"
    KIMI = "kimi-k2"
    MINIMAX = "minimax-m2"
    HARMONY = "harmony"
    GRANITE = "granite"
    PHI = "phi-4-mini"
    GEMMA = "gemma-3"
    GEMMA4 = "gemma-4"


TOOL_DIALECTS = tuple(dialect.value for dialect in ToolDialect)
