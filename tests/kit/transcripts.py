"""Answers as the families' documentation writes them, by dialect: one call; two calls after some text; malformed calls
and calls of unknown tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quire.options.dialects import ToolDialect

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "hourly": {"type": "boolean"},
                    "units": {"$ref": "#/$defs/Units"},
                },
                "$defs": {"Units": {"type": "object", "properties": {"wind": {"type": "string"}}}},
            },
        },
    },
    {"type": "function", "function": {"name": "weather_map", "parameters": {"type": "object", "properties": {}}}},
]
ROME: dict[str, Any] = {"city": "Rome", "days": 3}
OSLO: dict[str, Any] = {"city": "Oslo"}


@dataclass(frozen=True, slots=True)
class Transcript:
    dialect: ToolDialect
    text: str
    content: str
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()


def _named(key: str, name: str = "weather", arguments: str = '{"city": "Rome", "days": 3}') -> str:
    return f'{{"name": "{name}", "{key}": {arguments}}}'


ROME_CALL, OSLO_CALL = _named("arguments"), _named("arguments", arguments='{"city": "Oslo"}')
ROME_LLAMA, OSLO_LLAMA = _named("parameters"), _named("parameters", arguments='{"city": "Oslo"}')
UNKNOWN, UNKNOWN_LLAMA = _named("arguments", "sunrise"), _named("parameters", "sunrise")
BOTH = (("weather", ROME), ("weather", OSLO))
ONE = (("weather", ROME),)


def _in_marks(dialect: ToolDialect, before: str, after: str) -> list[Transcript]:
    """Each call in marks of its own."""
    two = f"I shall look.\n{before}{ROME_CALL}{after}\n{before}{OSLO_CALL}{after}\n"
    unknown, broken = f"{before}{UNKNOWN}{after} Well.", f"{before}weather(){after}"
    return [
        Transcript(dialect, f"{before}{ROME_CALL}{after}", "", ONE),
        Transcript(dialect, two, "I shall look.\n", BOTH),
        Transcript(dialect, unknown, unknown),
        Transcript(dialect, broken, broken),
    ]


def _in_list(dialect: ToolDialect, before: str, after: str) -> list[Transcript]:
    unknown, broken = f"{before}[{UNKNOWN}]{after}", f'{before}[{{"name": "weather", ]{after}'
    return [
        Transcript(dialect, f"{before}[{ROME_CALL}]{after}", "", ONE),
        Transcript(dialect, f"I shall look.{before}[{ROME_CALL}, {OSLO_CALL}]{after}", "I shall look.", BOTH),
        Transcript(dialect, unknown, unknown),
        Transcript(dialect, broken, broken),
    ]


QWEN_ROME = "<function=weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>"
QWEN_OSLO = "<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>"
QWEN = [
    ("<tool_call>\n" + QWEN_ROME + "\n</tool_call>", "", ONE),
    (f"First.\n\n<tool_call>\n{QWEN_ROME}\n</tool_call>\n<tool_call>\n{QWEN_OSLO}\n</tool_call>", "First.\n\n", BOTH),
    (
        "<tool_call>\n<function=weather>\n<parameter=city>\na < b\n\nc\n</parameter>\n<parameter=hourly>\nTrue\n"
        '</parameter>\n<parameter=units>\n{"wind": "kn"}\n</parameter>\n<parameter=days>\nmany\n</parameter>\n'
        "</function>\n</tool_call>",
        "",
        (("weather", {"city": "a < b\n\nc", "hourly": True, "units": {"wind": "kn"}, "days": "many"}),),
    ),
    ("<tool_call>\n<function=sunrise>\n</function>\n</tool_call>", None, ()),
    ("<tool_call>\n<function=weather>\n<parameter=city>\nRome", None, ()),
]
GLM_ROME = (
    "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"
)
GLM_OSLO = "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n</tool_call>"
GLM = [
    (GLM_ROME, "", ONE),
    (f"I shall look.\n{GLM_ROME}\n{GLM_OSLO}", "I shall look.\n", BOTH),
    ("<tool_call>weather_map\n</tool_call>", "", (("weather_map", {}),)),
    ("<tool_call>sunrise\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n</tool_call>", None, ()),
    ("<tool_call>weather\n<arg_key>city</arg_key>\nRome\n</tool_call>", None, ()),
]
MINIMAX_ROME = (
    '<invoke name="weather">\n<parameter name="city">Rome</parameter>\n'
    '<parameter name="days">3</parameter>\n</invoke>\n'
)
MINIMAX_OSLO = '<invoke name="weather">\n<parameter name="city">Oslo</parameter>\n</invoke>\n'
MINIMAX = [
    (f"<minimax:tool_call>\n{MINIMAX_ROME}</minimax:tool_call>", "", ONE),
    (f"I shall look.\n<minimax:tool_call>\n{MINIMAX_ROME}{MINIMAX_OSLO}</minimax:tool_call>", "I shall look.\n", BOTH),
    ('<minimax:tool_call>\n<invoke name="sunrise">\n</invoke>\n</minimax:tool_call>', None, ()),
    ('<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Rome</invoke>', None, ()),
]
DSML_ROME = (
    '<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="city" string="true">Rome</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
)
DSML_OSLO = (
    '<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n"
)


def _dsml(section: str) -> list[Any]:
    begin, end = f"<｜DSML｜{section}>\n", f"</｜DSML｜{section}>"
    unknown = (
        '<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="code" string="true">042</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="more" string="false">{"a": [1, null]}</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
    )
    return [
        (f"{begin}{DSML_ROME}{end}", "", ONE),
        (f"I shall look.\n\n{begin}{DSML_ROME}{DSML_OSLO}{end}", "I shall look.\n\n", BOTH),
        (f"{begin}{unknown}{end}", "", (("weather", {"code": "042", "more": {"a": [1, None]}}),)),
        (f'{begin}<｜DSML｜invoke name="weather_map">\n</｜DSML｜invoke>\n{end}', "", (("weather_map", {}),)),
        (f'{begin}<｜DSML｜invoke name="sunrise">\n</｜DSML｜invoke>\n{end}', None, ()),
        (f'{begin}<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="city" string="maybe">Rome', None, ()),
    ]


GEMMA4_ROME = '<|tool_call>call:weather{city:<|"|>Rome<|"|>,days:3}<tool_call|>'
GEMMA4_OSLO = '<|tool_call>call:weather{city:<|"|>Oslo<|"|>}<tool_call|>'
GEMMA4 = [
    (GEMMA4_ROME, "", ONE),
    (f"I shall look.\n{GEMMA4_ROME}{GEMMA4_OSLO}", "I shall look.\n", BOTH),
    ("<|tool_call>call:weather_map{}<tool_call|>", "", (("weather_map", {}),)),
    (
        '<|tool_call>call:weather{city:<|"|>a "b", {c}: [<|"|>,'
        'more:{list:[1,-2.5,true,<|"|>x<|"|>],none:null}}<tool_call|>',
        "",
        (("weather", {"city": 'a "b", {c}: [', "more": {"list": [1, -2.5, True, "x"], "none": None}}),),
    ),
    ('<|tool_call>call:sunrise{city:<|"|>Rome<|"|>}<tool_call|>', None, ()),
    ('<|tool_call>call:weather{city:<|"|>Rome}<tool_call|>', None, ()),
    ('<|tool_call>call:weather{city <|"|>Rome<|"|>}<tool_call|>', None, ()),
    ("<|tool_call>call:weather[1]<tool_call|>", None, ()),
]
V3 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>"
V3_ROME, V3_OSLO = V3.format("weather", '{"city": "Rome", "days": 3}'), V3.format("weather", '{"city": "Oslo"}')
DEEPSEEK_V3 = [
    (f"<｜tool▁calls▁begin｜>{V3_ROME}<｜tool▁calls▁end｜>", "", ONE),
    (f"I shall look.<｜tool▁calls▁begin｜>{V3_ROME}\n{V3_OSLO}<｜tool▁calls▁end｜>", "I shall look.", BOTH),
    (f"<｜tool▁calls▁begin｜>{V3.format('sunrise', '{}')}<｜tool▁calls▁end｜>", None, ()),
    ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\nRome<｜tool▁call▁end｜>", None, ()),
]
V31 = "<｜tool▁call▁begin｜>{}<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
V31_ROME, V31_OSLO = V31.format("weather", '{"city": "Rome", "days": 3}'), V31.format("weather", '{"city": "Oslo"}')
DEEPSEEK_V31 = [
    (f"<｜tool▁calls▁begin｜>{V31_ROME}<｜tool▁calls▁end｜>", "", ONE),
    (f"I shall look.<｜tool▁calls▁begin｜>{V31_ROME}{V31_OSLO}<｜tool▁calls▁end｜>", "I shall look.", BOTH),
    (f"<｜tool▁calls▁begin｜>{V31.format('sunrise', '{}')}<｜tool▁calls▁end｜>", None, ()),
    ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>Rome<｜tool▁call▁end｜>", None, ()),
]
K2 = "<|tool_call_begin|>functions.{}:{}<|tool_call_argument_begin|>{}<|tool_call_end|>"
K2_ROME, K2_OSLO = K2.format("weather", 0, '{"city": "Rome", "days": 3}'), K2.format("weather", 1, '{"city": "Oslo"}')
KIMI = [
    (f"<|tool_calls_section_begin|>{K2_ROME}<|tool_calls_section_end|>", "", ONE),
    (f"I shall look.<|tool_calls_section_begin|>{K2_ROME}{K2_OSLO}<|tool_calls_section_end|>", "I shall look.", BOTH),
    (f"<|tool_calls_section_begin|>{K2.format('sunrise', 0, '{}')}<|tool_calls_section_end|>", None, ()),
    ("<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:x<|tool_call_end|>", None, ()),
]
TO = "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>{}<|call|>"
TO_ROME, TO_OSLO = TO.format("weather", '{"city": "Rome", "days": 3}'), TO.format("weather", '{"city": "Oslo"}')
HARMONY = [
    (TO_ROME, "", ONE),
    (f"I shall look.{TO_ROME}{TO_OSLO}", "I shall look.", BOTH),
    (TO.format("sunrise", "{}"), None, ()),
    (TO.format("weather", "Rome"), None, ()),
]
MISTRAL_ARGS = [
    ('[TOOL_CALLS]weather[ARGS]{"city": "Rome", "days": 3}', "", ONE),
    (
        'I shall look.[TOOL_CALLS]weather[ARGS]{"city": "Rome", "days": 3}[TOOL_CALLS]weather[ARGS]{"city": "Oslo"}',
        "I shall look.",
        BOTH,
    ),
    ('[TOOL_CALLS]weather[CALL_ID]a1B2c3D4e[ARGS]{"city": "Oslo"}', "", BOTH[1:]),
    ('[TOOL_CALLS]weather_map{"zoom": 1}', "", (("weather_map", {"zoom": 1}),)),
    (f"[TOOL_CALLS] [{ROME_CALL}]", "", ONE),
    ("[TOOL_CALLS]sunrise[ARGS]{}", None, ()),
    ("[TOOL_CALLS]weather_maps[ARGS]{}", None, ()),
    ("[TOOL_CALLS]weather[ARGS]Rome", None, ()),
]
LLAMA3 = [
    (ROME_LLAMA, "", ONE),
    (f"<|python_tag|>{ROME_LLAMA}", "", ONE),
    (f"I shall look.<|python_tag|>{ROME_LLAMA}; {OSLO_LLAMA}", "I shall look.", BOTH),
    (f"{ROME_LLAMA}\n{OSLO_LLAMA}", "", BOTH),
    (f"{ROME_LLAMA}; done", "; done", ONE),
    (UNKNOWN_LLAMA, None, ()),
    ('<|python_tag|>weather.call(city="Rome")', None, ()),
]
LLAMA4 = [
    ('[weather(city="Rome", days=3)]', "", ONE),
    (
        'I shall look.<|python_start|>[weather(city="Rome", days=3), weather(city="Oslo")]<|python_end|>',
        "I shall look.",
        BOTH,
    ),
    (ROME_LLAMA, "", ONE),
    (f"<|python_start|>{ROME_LLAMA}<|python_end|>", "", ONE),
    (ROME_LLAMA + OSLO_LLAMA, "", BOTH),
    (
        '[weather(city="[a, b)", days=-3, units={"wind": None})]',
        "",
        (("weather", {"city": "[a, b)", "days": -3, "units": {"wind": None}}),),
    ),
    ('[sunrise(city="Rome")]', None, ()),
    ('[weather(city="Rome", sunrise(city="Rome"))]', None, ()),
    ("[weather(city=Rome)]", None, ()),
    ("[1, 2, 3] is a list", None, ()),
]
GEMMA = [
    ('```tool_code\nweather(city="Rome", days=3)\n```', "", ONE),
    ('I shall look.\n```tool_code\nweather(city="Rome", days=3)\nweather(city="Oslo")\n```', "I shall look.\n", BOTH),
    ('[weather(city="Rome", days=3), weather(city="Oslo")]', "", BOTH),
    (f"```json\n{ROME_LLAMA}\n```", "", ONE),
    (ROME_LLAMA, "", ONE),
    ('```tool_code\nsunrise(city="Rome")\n```', None, ()),
    ("```tool_code\nweather(Rome)\n```", None, ()),
    ('```json\n{"city": "Rome"}\n```', None, ()),
]
_ROWS: dict[ToolDialect, list[Any]] = {
    ToolDialect.QWEN3_CODER: QWEN,
    ToolDialect.GLM: GLM,
    ToolDialect.MINIMAX: MINIMAX,
    ToolDialect.DEEPSEEK_V32: _dsml("function_calls"),
    ToolDialect.DEEPSEEK_V4: _dsml("tool_calls"),
    ToolDialect.DEEPSEEK_V3: DEEPSEEK_V3,
    ToolDialect.DEEPSEEK_V31: DEEPSEEK_V31,
    ToolDialect.KIMI: KIMI,
    ToolDialect.HARMONY: HARMONY,
    ToolDialect.MISTRAL_ARGS: MISTRAL_ARGS,
    ToolDialect.LLAMA3: LLAMA3,
    ToolDialect.LLAMA4: LLAMA4,
    ToolDialect.GEMMA: GEMMA,
    ToolDialect.GEMMA4: GEMMA4,
}
TRANSCRIPTS = [
    *_in_marks(ToolDialect.JSON, "<tool_call>", "</tool_call>"),
    Transcript(ToolDialect.JSON, ROME_CALL, "", ONE),
    *_in_marks(ToolDialect.HERMES, "<tool_call>\n", "\n</tool_call>"),
    *_in_list(ToolDialect.MISTRAL, "[TOOL_CALLS] ", ""),
    *_in_list(ToolDialect.GRANITE, "<|tool_call|>", ""),
    *_in_list(ToolDialect.GRANITE, "<tool_call>", ""),
    *_in_list(ToolDialect.PHI, "<|tool_call|>", "<|/tool_call|>"),
    *_in_list(ToolDialect.PHI, "functools", ""),
    *(
        Transcript(dialect, text, text if content is None else content, calls)
        for dialect, rows in _ROWS.items()
        for text, content, calls in rows
    ),
]
