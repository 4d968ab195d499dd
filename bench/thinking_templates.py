"""Small chat templates that drop reasoning when the user speaks again and keep it while tools are called: one in the
style of Qwen3, one in the style of gpt-oss. With what a model would write under each."""

from __future__ import annotations

import json
from typing import Any

_LAST_USER = (
    "{%- set ns = namespace(last=-1) -%}"
    "{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}"
)
QWEN = _LAST_USER + (
    "{%- if tools -%}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif -%}"
    "{%- for m in messages -%}"
    "{{- '<|im_start|>' + m.role + '\n' -}}"
    "{%- if m.role == 'assistant' and m.reasoning_content and loop.index0 > ns.last -%}"
    "{{- '<think>\n' + m.reasoning_content + '\n</think>\n\n' -}}{%- endif -%}"
    "{{- m.content -}}"
    "{%- for call in m.tool_calls or [] -%}"
    "{{- '\n<tool_call>\n' + ({'name': call.function.name, 'arguments': call.function.arguments} | tojson)"
    " + '\n</tool_call>' -}}{%- endfor -%}"
    "{{- '<|im_end|>\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}"
    "{%- if enable_thinking is defined and not enable_thinking -%}{{- '<think>\n\n</think>\n\n' -}}{%- endif -%}"
    "{%- endif -%}"
)
HARMONY = _LAST_USER + (
    "{%- if tools -%}<|start|>developer<|message|>{{ tools | tojson }}<|end|>{% endif -%}"
    "{%- for m in messages -%}"
    "{%- if m.role == 'assistant' -%}"
    "{%- if m.reasoning_content and loop.index0 > ns.last -%}"
    "{{- '<|start|>assistant<|channel|>analysis<|message|>' + m.reasoning_content + '<|end|>' -}}{%- endif -%}"
    "{%- for call in m.tool_calls or [] -%}"
    "{{- '<|start|>assistant<|channel|>commentary to=functions.' + call.function.name + ' <|constrain|>json<|message|>'"
    " + (call.function.arguments | tojson) + '<|call|>' -}}{%- endfor -%}"
    "{%- if not m.tool_calls -%}{{- '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' -}}"
    "{%- endif -%}"
    "{%- else -%}{{- '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' -}}{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|start|>assistant' -}}{%- endif -%}"
)
PLAIN = (
    "{%- for m in messages -%}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)
TEMPLATES = {"qwen": QWEN, "harmony": HARMONY, "plain": PLAIN}
MARKS = (
    "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>",
    "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>",
)  # fmt: skip
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def written(style: str, thought: str, said: str, call: dict[str, Any] | None = None) -> str:
    """What a model writes: its reasoning, then an answer or a call, whose arguments it spells in its own way."""
    spelled = None if call is None else json.dumps(call, separators=(",", ":"))
    if style == "plain":
        return f"{said}<|im_end|>"
    if style == "qwen":
        called = f'\n<tool_call>\n{{"name":"look","arguments":{spelled}}}\n</tool_call>' if call is not None else ""
        return f"<think>\n{thought}\n</think>\n\n{said}{called}<|im_end|>"
    analysis = f"<|channel|>analysis<|message|>{thought}<|end|><|start|>assistant<|channel|>"
    if call is not None:
        return f"{analysis}commentary to=functions.look <|constrain|>json<|message|>{spelled}<|call|>"
    return f"{analysis}final<|message|>{said}<|return|>"
