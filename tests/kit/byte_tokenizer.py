"""A tokenizer with a token for every byte and for the marks of a dialect."""

from __future__ import annotations

from collections.abc import Sequence

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from quire.options.dialects import ToolDialect
from quire.text.templates import ChatTemplate
from quire.text.tokenizer import Tokenizer

END = "<|endoftext|>"


def byte_tokenizer(marks: Sequence[str], template: str | None = None) -> Tokenizer:
    """A token for every byte and for each of these marks."""
    vocabulary = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    inner = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(mark, special=True) for mark in (END, *marks)])
    return Tokenizer(inner, (inner.token_to_id(END),), None if template is None else ChatTemplate(template, {}))


MARKS = {
    ToolDialect.HARMONY: ["<|channel|>", "<|message|>", "<|constrain|>", "<|call|>", "<|start|>"],
    ToolDialect.KIMI: [
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
    ],
    ToolDialect.DEEPSEEK_V3: [
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
    ],
    ToolDialect.DEEPSEEK_V31: [
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
    ],
    ToolDialect.DEEPSEEK_V32: ["｜DSML｜"],
    ToolDialect.DEEPSEEK_V4: ["｜DSML｜"],
    ToolDialect.GLM: ["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
    ToolDialect.HERMES: ["<tool_call>", "</tool_call>"],
    ToolDialect.MISTRAL: ["[TOOL_CALLS]"],
    ToolDialect.MISTRAL_ARGS: ["[TOOL_CALLS]", "[ARGS]"],
    ToolDialect.GRANITE: ["<|tool_call|>"],
    ToolDialect.PHI: ["<|tool_call|>", "<|/tool_call|>"],
    ToolDialect.GEMMA4: ["<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>"],
    ToolDialect.MINIMAX: ["<minimax:tool_call>", "</minimax:tool_call>"],
}
"""Of each family's tokenizer, the tokens that are marks."""
