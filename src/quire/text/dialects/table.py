"""The table of dialects, the most specific first: the first one whose marks a chat template has is the model's."""

from __future__ import annotations

from quire.options.dialects import ToolDialect
from quire.text.dialects.dialect import Dialect, Parameters, Written
from quire.text.reasoning import THINK, ReasoningMarks

_NAMED_OBJECT = '{"name": "{name}", "arguments": {arguments}}'
_LLAMA_OBJECT = '{"name": "{name}", "parameters": {arguments}}'
_XML_MARK, _XML_END = "<tool_call>", "</tool_call>"
_MISTRAL_HEADERS = (
    "[TOOL_CALLS]{name}[CALL_ID]{word}[ARGS]",
    "[TOOL_CALLS]{name}[ARGS]",
    "[TOOL_CALLS]{name}",
)
_MISTRAL_THINK = ReasoningMarks("[THINK]", "[/THINK]")


def _dsml(name: ToolDialect, families: str, section: str) -> Dialect:
    """DeepSeek's markup: its marks have the token ｜DSML｜ in them."""
    return Dialect(
        name,
        families,
        Written(
            '<｜DSML｜invoke name="{name}">\n{parameters}</｜DSML｜invoke>\n',
            f"<｜DSML｜{section}>\n",
            "",
            f"</｜DSML｜{section}>",
        ),
        found_by=(("｜DSML｜", section),),
        opening=f"<｜DSML｜{section}>",
        headers=('<｜DSML｜invoke name="{name}">',),
        footers=("</｜DSML｜invoke>", f"</｜DSML｜{section}>"),
        parameters=Parameters('<｜DSML｜parameter name="{key}" string="{string}">', "</｜DSML｜parameter>"),
    )


_TABLE = (
    Dialect(
        ToolDialect.HARMONY,
        "gpt-oss",
        Written("<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}"),
        found_by=(("<|channel|>", "<|message|>"),),
        headers=("<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>",),
        footers=("<|call|>",),
        reasoning=(),
        has_channels=True,
    ),
    Dialect(
        ToolDialect.MINIMAX,
        "MiniMax M2",
        Written(
            '<invoke name="{name}">\n{parameters}</invoke>\n',
            "<minimax:tool_call>\n",
            "",
            "</minimax:tool_call>",
        ),
        found_by=(("<minimax:tool_call>",),),
        opening="<minimax:tool_call>",
        headers=('<invoke name="{name}">',),
        footers=("</invoke>", "</minimax:tool_call>"),
        parameters=Parameters('<parameter name="{key}">', "</parameter>"),
    ),
    Dialect(
        ToolDialect.KIMI,
        "Kimi K2, Kimi-VL",
        Written(
            "<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>",
            "<|tool_calls_section_begin|>",
            "",
            "<|tool_calls_section_end|>",
        ),
        found_by=(("<|tool_calls_section_begin|>",), ("◁think▷",)),
        opening="<|tool_calls_section_begin|>",
        headers=("<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>",),
        footers=("<|tool_call_end|>", "<|tool_calls_section_end|>"),
        reasoning=(ReasoningMarks("◁think▷", "◁/think▷"), THINK),
    ),
    _dsml(ToolDialect.DEEPSEEK_V32, "DeepSeek V3.2", "function_calls"),
    _dsml(ToolDialect.DEEPSEEK_V4, "DeepSeek V4", "tool_calls"),
    Dialect(
        ToolDialect.DEEPSEEK_V3,
        "DeepSeek V3, R1",
        Written(
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>",
            "<｜tool▁calls▁begin｜>",
            "\n",
            "<｜tool▁calls▁end｜>",
        ),
        found_by=(("<｜tool▁calls▁begin｜>", "```json"),),
        opening="<｜tool▁calls▁begin｜>",
        headers=("<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name} ```json",),
        has_text_arguments=True,
        footers=("```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
    ),
    Dialect(
        ToolDialect.DEEPSEEK_V31,
        "DeepSeek V3.1",
        Written(
            "<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>",
            "<｜tool▁calls▁begin｜>",
            "",
            "<｜tool▁calls▁end｜>",
        ),
        found_by=(("<｜tool▁calls▁begin｜>",),),
        opening="<｜tool▁calls▁begin｜>",
        headers=("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>",),
        has_text_arguments=True,
        footers=("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
    ),
    Dialect(
        ToolDialect.GLM,
        "GLM-4.5",
        Written("<tool_call>{name}\n{parameters}</tool_call>", between="\n"),
        found_by=(("<arg_key>",),),
        headers=("<tool_call>{name}",),
        footers=(_XML_END,),
        parameters=Parameters("<arg_key>{key}</arg_key>\n<arg_value>", "</arg_value>"),
    ),
    Dialect(
        ToolDialect.QWEN3_CODER,
        "Qwen3-Coder",
        Written("<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>", between="\n"),
        found_by=(("<function=", "<parameter="),),
        opening=_XML_MARK,
        headers=("<function={name}>",),
        footers=("</function>", _XML_END),
        parameters=Parameters("<parameter={key}>", "</parameter>", line="\n"),
    ),
    Dialect(
        ToolDialect.MISTRAL_ARGS,
        "Mistral from tokenizer version 11 on, Ministral 3, Devstral",
        Written("[TOOL_CALLS]{name}[ARGS]{arguments}", between=""),
        found_by=(("[TOOL_CALLS]", "[ARGS]"),),
        json_marks=("[TOOL_CALLS]",),
        headers=_MISTRAL_HEADERS,
        reasoning=(_MISTRAL_THINK, THINK),
    ),
    Dialect(
        ToolDialect.MISTRAL,
        "Mistral 7B v0.3, Nemo, Small",
        Written(_NAMED_OBJECT, "[TOOL_CALLS] [", ", ", "]"),
        found_by=(("[TOOL_CALLS]",),),
        json_marks=("[TOOL_CALLS]",),
        headers=_MISTRAL_HEADERS,
        reasoning=(_MISTRAL_THINK, THINK),
    ),
    Dialect(
        ToolDialect.PHI,
        "Phi-4-mini",
        Written(_NAMED_OBJECT, "<|tool_call|>[", ", ", "]<|/tool_call|>"),
        found_by=(("<|/tool_call|>",), ("<|/tool|>",), ("functools",)),
        json_marks=("<|tool_call|>", "functools"),
        json_ends=("<|/tool_call|>",),
    ),
    Dialect(
        ToolDialect.GRANITE,
        "Granite 3",
        Written(_NAMED_OBJECT, "<|tool_call|>[", ", ", "]"),
        found_by=(("<|start_of_role|>",), ("<|tool_call|>",)),
        without=(_XML_END,),
        json_marks=("<|tool_call|>", _XML_MARK),
        json_ends=(_XML_END,),
        reasoning=(
            ReasoningMarks("Here is my thought process:", "Here is my response:"),
            ReasoningMarks("<think>", "</think>", ("<response>", "</response>")),
        ),
    ),
    Dialect(
        ToolDialect.LLAMA4,
        "Llama 4",
        Written(_LLAMA_OBJECT),
        found_by=(("<|header_start|>",), ("<|python_start|>",)),
        json_marks=("<|python_start|>",),
        json_ends=("<|python_end|>",),
        separator=";",
        python_marks=(("<|python_start|>", "<|python_end|>"),),
        is_python=True,
    ),
    Dialect(
        ToolDialect.LLAMA3,
        "Llama 3.1, 3.2, 3.3",
        Written(_LLAMA_OBJECT, between="; "),
        found_by=(("<|python_tag|>",), ("<|start_header_id|>", "ipython")),
        json_marks=("<|python_tag|>",),
        separator=";",
    ),
    Dialect(
        ToolDialect.GEMMA4,
        "Gemma 4",
        Written(_LLAMA_OBJECT),
        found_by=(("<|tool_call>",), ("<|turn>",)),
        headers=("<|tool_call>call:{name}",),
        footers=("<tool_call|>",),
        quote='<|"|>',
        reasoning=(ReasoningMarks("<|channel>thought", "<channel|>"),),
    ),
    Dialect(
        ToolDialect.GEMMA,
        "Gemma 3",
        Written(_LLAMA_OBJECT),
        found_by=(("<start_of_turn>",),),
        json_marks=("```json",),
        json_ends=("```",),
        python_marks=(("```tool_code", "```"),),
        is_python=True,
    ),
    Dialect(
        ToolDialect.HERMES,
        "Hermes, Qwen2.5, Qwen3, Granite 4",
        Written("<tool_call>\n" + _NAMED_OBJECT + "\n</tool_call>", between="\n"),
        found_by=((_XML_MARK,),),
        json_marks=(_XML_MARK,),
        json_ends=(_XML_END,),
    ),
    Dialect(
        ToolDialect.JSON,
        "all other templates",
        Written(_NAMED_OBJECT),
        explained='<tool_call>{"name": ..., "arguments": {...}}</tool_call>',
        json_marks=(_XML_MARK,),
        json_ends=(_XML_END,),
    ),
)
DIALECTS = {dialect.name: dialect for dialect in _TABLE}
PLAIN = DIALECTS[ToolDialect.JSON]


def dialect_of(template: str) -> Dialect:
    """The dialect that a chat template is written in."""
    return next((dialect for dialect in _TABLE if dialect.is_of(template)), PLAIN)
