"""Calls that are required: whatever is sampled under the grammar, the dialect's reader finds calls that the schemas
accept."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import jsonschema
import numpy as np
import pytest

from byte_tokenizer import MARKS, byte_tokenizer
from quire.core.errors import InputError
from quire.core.sampling import Grammar, GrammarSort
from quire.options.dialects import ToolDialect
from quire.text.answer import Answer
from quire.text.dialects.closed import closed
from quire.text.dialects.dialect import Dialect
from quire.text.dialects.table import DIALECTS
from quire.text.grammar import Grammars
from quire.text.tokenizer import Tokenizer
from quire.text.tools import ToolUse

MOST_TOKENS = 400
WORDS = ("city", "days", "unit", "note", "list")


def random_schema(draw: random.Random, depth: int = 0) -> dict[str, Any]:
    sort = draw.choice(("string", "integer", "number", "boolean", "choice", "null", "array", "object")[: 8 - 2 * depth])
    if sort == "choice":
        return {"type": "string", "enum": draw.sample(("a", "b c", "d"), 2)}
    if sort == "integer":
        return {"type": "integer", "minimum": -20, "maximum": 20}
    if sort == "array":
        return {"type": "array", "items": random_schema(draw, depth + 1), "maxItems": 2}
    if sort == "object":
        return random_object(draw, depth + 1)
    return {"type": sort, **({"maxLength": 8} if sort == "string" and draw.random() < 0.5 else {})}


def random_object(draw: random.Random, depth: int = 0) -> dict[str, Any]:
    names = draw.sample(WORDS, draw.randint(0, 3))
    properties = {name: random_schema(draw, depth) for name in names}
    return {"type": "object", "properties": properties, "required": [one for one in names if draw.random() < 0.6]}


def tool(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def walk(grammars: Grammars, grammar: Grammar, tokenizer: Tokenizer, draw: random.Random) -> list[int] | None:
    """Tokens drawn from the masks up to the end; None: it has not come after `MOST_TOKENS`. Brackets, quotes and marks
    are likelier than other tokens, so that values end."""
    constraint, tokens = grammars.compile(grammar), list[int]()
    closing = {tokenizer.inner.token_to_id(one) for one in '"}],<0'} | set(tokenizer.added_tokens.values())
    while len(tokens) < MOST_TOKENS:
        allowed = np.flatnonzero(np.unpackbits(constraint.mask().view(np.uint8), bitorder="little")).tolist()
        likely = [token for token in allowed if token in closing]
        token = draw.choice(likely if likely and draw.random() < 0.7 else allowed)
        if token in tokenizer.eos_token_ids:
            return tokens
        constraint.accept(token)
        tokens.append(token)
    return None


def check(dialect: Dialect, tokenizer: Tokenizer, grammars: Grammars, seed: int) -> int:
    """The calls of one random walk through the grammar of two random tools, if it ends."""
    draw = random.Random(f"{dialect.name.value} {seed}")
    schemas = {"weather": random_object(draw), "weather_map": random_object(draw)}
    use = ToolUse(tuple(tool(name, schema) for name, schema in schemas.items()), True, dialect=dialect)
    grammar = use.grammar(tokenizer.added_tokens)
    assert grammar is not None
    tokens = walk(grammars, grammar, tokenizer, draw)
    if tokens is None:
        return 0
    answer = Answer(tokenizer, tokenizer.eos_token_ids, (), None, use.reader())
    delta = answer.feed(tokens, ending="stop")
    assert (delta.text, delta.ending) == ("", "tool_calls"), tokenizer.decode(tokens, False)
    for call in delta.tool_calls:
        jsonschema.validate(json.loads(call.arguments), closed(schemas[call.name]))
    return len(delta.tool_calls)


def dialects(seeds: int, marks: Any = ()) -> Iterator[Any]:
    return (pytest.param(dialect, seeds, marks=marks, id=f"{dialect.value} {seeds}") for dialect in ToolDialect)


@pytest.mark.law
@pytest.mark.parametrize(("name", "seeds"), [*dialects(6), *dialects(50, pytest.mark.soak)])
def test_whatever_an_enforced_call_says_is_read_back_and_keeps_its_schema(name: ToolDialect, seeds: int) -> None:
    """Two tools with random schemas, and a random walk over the tokens that the grammar allows."""
    for has_marks in (True, False):
        tokenizer = byte_tokenizer(MARKS.get(name, []) if has_marks else [])
        grammars = Grammars(tokenizer)
        calls = [check(DIALECTS[name], tokenizer, grammars, seed) for seed in range(seeds)]
        assert sum(map(bool, calls)) > seeds // 3, "too few walks have an end"


SIMPLE = tool("weather", {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})


def accepts(grammar: Grammar, text: str, marks: list[str]) -> bool:
    """Whether the grammar allows this text and an end after it."""
    tokenizer = byte_tokenizer(marks)
    constraint = Grammars(tokenizer).compile(grammar)
    for token in [*tokenizer.encode(text), *tokenizer.eos_token_ids]:
        if not constraint.mask()[token // 32] >> (token % 32) & 1:
            return False
        if token not in tokenizer.eos_token_ids:
            constraint.accept(token)
    return True


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("json", '{"name": "weather", "arguments": {"city": "a"}}'),
        ("hermes", '<tool_call>\n{"name": "weather", "arguments": {"city": "a"}}\n</tool_call>'),
        (
            "qwen3-coder",
            "<tool_call>\n<function=weather>\n<parameter=city>\na\n</parameter>\n</function>\n</tool_call>",
        ),
        ("llama3", '{"name": "weather", "parameters": {"city": "a"}}'),
        ("mistral", '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "a"}}]'),
        ("mistral-args", '[TOOL_CALLS]weather[ARGS]{"city": "a"}'),
        (
            "deepseek-v3",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n"
            '```json\n{"city": "a"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        ),
        (
            "deepseek-v3.2",
            '<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n'
            '<｜DSML｜parameter name="city" string="true">a</｜DSML｜parameter>\n'
            "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        ),
        ("glm-4.5", "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>a</arg_value>\n</tool_call>"),
        (
            "kimi-k2",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
            '{"city": "a"}<|tool_call_end|><|tool_calls_section_end|>',
        ),
        ("harmony", '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "a"}'),
        ("phi-4-mini", '<|tool_call|>[{"name": "weather", "arguments": {"city": "a"}}]<|/tool_call|>'),
    ],
)
def test_an_enforced_call_has_the_form_of_the_familys_own_template(name: str, text: str) -> None:
    """With the marks as tokens of the tokenizer, and as text where it has no such tokens."""
    dialect = DIALECTS[ToolDialect(name)]
    for marks in (MARKS.get(dialect.name, []), []):
        grammar = ToolUse((SIMPLE,), True, dialect=dialect).grammar(byte_tokenizer(marks).added_tokens)
        assert grammar is not None
        assert accepts(grammar, text, marks)


def test_one_call_is_enforced_for_a_named_tool_and_without_parallel_calls() -> None:
    hermes = DIALECTS[ToolDialect.HERMES]
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "a"}}\n</tool_call>'
    for use, count in (
        (ToolUse((SIMPLE,), True, dialect=hermes), 2),
        (ToolUse((SIMPLE,), True, ("weather",), 1, hermes), 1),
        (ToolUse((SIMPLE,), True, most_calls=1, dialect=hermes), 1),
    ):
        grammar = use.grammar({})
        assert grammar is not None
        assert accepts(grammar, call, [])
        assert accepts(grammar, f"{call}\n{call}", []) == (count == 2)


def test_values_that_text_cannot_show_are_enforced_as_one_json_object() -> None:
    """A pattern says more about a string than the grammar of a text parameter can."""
    pattern = {"type": "object", "properties": {"city": {"type": "string", "pattern": "^[A-Z]+$"}}}
    use = ToolUse((tool("weather", pattern),), True, dialect=DIALECTS[ToolDialect.GLM])
    grammar, reader = use.grammar({}), use.reader()
    text = '{"name": "weather", "arguments": {"city": "ROME"}}'
    assert grammar is not None
    assert reader is not None
    assert accepts(grammar, text, [])
    assert not accepts(grammar, text.replace("ROME", "Rome"), [])
    assert [call.arguments for call in (*reader.feed(text).calls, *reader.finish().calls)] == ['{"city": "ROME"}']


@pytest.mark.story
def test_references_in_parameters_refer_to_the_parameters() -> None:
    """They used to refer to the schema of the whole call, where there are no definitions: such tools were refused."""
    schema = {
        "type": "object",
        "properties": {"where": {"$ref": "#/$defs/Place"}},
        "required": ["where"],
        "$defs": {"Place": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}},
    }
    grammar = ToolUse((tool("weather", schema),), True).grammar({})
    assert grammar is not None
    assert accepts(grammar, '{"name": "weather", "arguments": {"where": {"city": "a"}}}', [])
    assert not accepts(grammar, '{"name": "weather", "arguments": {"where": {"city": "a", "more": 1}}}', [])


OPEN = {"type": "object", "properties": {"a": {}}}
SHUT = {**OPEN, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (OPEN, SHUT),
        ({**OPEN, "additionalProperties": True}, {**OPEN, "additionalProperties": True}),
        ({**OPEN, "patternProperties": {"b": OPEN}}, {**OPEN, "patternProperties": {"b": SHUT}}),
        ({"type": "object"}, {"type": "object"}),
        ({"properties": {"enum": OPEN}}, {"properties": {"enum": SHUT}, "additionalProperties": False}),
        ({"items": OPEN}, {"items": SHUT}),
        ({"anyOf": [OPEN, {"type": "null"}]}, {"anyOf": [SHUT, {"type": "null"}]}),
        ({"$defs": {"A": OPEN}, "$ref": "#/$defs/A"}, {"$defs": {"A": SHUT}, "$ref": "#/$defs/A"}),
        *(({key: [OPEN]}, {key: [OPEN]}) for key in ("enum", "examples", "const", "default")),
        ({"allOf": [OPEN, {"properties": {"b": OPEN}}]}, {"allOf": [OPEN, {"properties": {"b": SHUT}}]}),
        ({**OPEN, "anyOf": [OPEN]}, {**OPEN, "anyOf": [SHUT]}),
        ({**OPEN, "anyOf": [{"required": ["a"]}]}, {**SHUT, "anyOf": [{"required": ["a"]}]}),
        (
            {"$defs": {"A": OPEN}, "allOf": [{"$ref": "#/$defs/A"}, OPEN]},
            {"$defs": {"A": OPEN}, "allOf": [{"$ref": "#/$defs/A"}, OPEN]},
        ),
    ],
)
def test_objects_with_properties_are_closed_unless_the_schema_opens_them(
    schema: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert closed(schema) == expected


UNIQUE = {"type": "object", "properties": {"uniqueItems": {"type": "array", "items": {}, "uniqueItems": True}}}


def test_a_keyword_that_cannot_be_enforced_is_named_with_its_place_and_what_to_do() -> None:
    """In a response format, in parameters, and in parameters of a dialect that has a rule for each of them."""
    grammars = Grammars(byte_tokenizer([]))
    place = r"the keyword uniqueItems at properties.uniqueItems of the {} cannot be enforced: leave it out, and check"
    with pytest.raises(InputError, match=place.format("schema")):
        grammars.compile(Grammar(GrammarSort.JSON, json.dumps(UNIQUE)))
    for name in (ToolDialect.JSON, ToolDialect.GLM):
        grammar = ToolUse((SIMPLE, tool("lists", UNIQUE)), True, dialect=DIALECTS[name]).grammar({})
        assert grammar is not None
        with pytest.raises(InputError, match=place.format("parameters of lists")):
            grammars.compile(grammar)


KEYWORDS = (
    "type",
    "properties",
    "required",
    "enum",
    "const",
    "anyOf",
    "allOf",
    "items",
    "additionalProperties",
    "$ref",
)


def nonsense(draw: random.Random, depth: int = 0) -> Any:
    """JSON of keywords with values of any sort."""
    if depth > 3 or draw.random() < 0.3:
        return draw.choice((None, True, 5, -1.5, "string", "object", "integer", "#/properties/a", ""))
    if draw.random() < 0.3:
        return [nonsense(draw, depth + 1) for _ in range(draw.randint(0, 3))]
    return {draw.choice((*KEYWORDS, "a")): nonsense(draw, depth + 1) for _ in range(draw.randint(0, 4))}


@pytest.mark.parametrize("name", [ToolDialect.JSON, ToolDialect.GLM])
def test_a_schema_that_is_none_is_refused_or_read_and_never_an_error_of_the_server(name: ToolDialect) -> None:
    """Keywords with values of the wrong sort, in required calls and in calls that are read."""
    said = "<tool_call>t\n<arg_key>a</arg_key>\n<arg_value>5</arg_value>\n</tool_call>"
    refused = 0
    for seed in range(400):
        draw = random.Random(seed)
        schema = {"type": "object", "properties": {"a": nonsense(draw)}, draw.choice(KEYWORDS): nonsense(draw)}
        use = ToolUse((tool("t", schema),), True, dialect=DIALECTS[name])
        try:
            use.grammar({})
        except InputError:
            refused += 1
        reader = use.reader()
        assert reader is not None
        assert len([*reader.feed(said).calls, *reader.finish().calls]) == (name is ToolDialect.GLM)
    assert 0 < refused < 100


def test_arguments_are_an_object_whatever_the_type_of_the_parameters() -> None:
    with pytest.raises(InputError, match="the parameters of t have the type 'string': arguments are an object"):
        ToolUse((tool("t", {"type": "string"}),), True).grammar({})
    for schema in ({"properties": {"a": {"const": 1}}, "required": ["a"]}, {"type": ["object", "null"]}):
        grammar = ToolUse((tool("t", schema),), True).grammar({})
        assert grammar is not None
        assert accepts(grammar, '{"name": "t", "arguments": {"a": 1}}', [])
        assert not accepts(grammar, '{"name": "t", "arguments": null}', [])


def test_parameters_that_are_nested_too_deep_are_refused() -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(5000):
        deep = {"type": "array", "items": deep}
    with pytest.raises(InputError, match="the parameters of t are nested deeper than 100 levels: flatten them"):
        ToolUse((tool("t", {"type": "object", "properties": {"a": deep}}),), True).grammar({})


def test_half_of_a_surrogate_pair_in_a_schema_is_refused_and_is_no_error_of_the_server() -> None:
    half = {"type": "object", "properties": {"a": {"type": "string", "enum": ["\ud800"]}}}
    for name in (ToolDialect.JSON, ToolDialect.GLM):
        grammar = ToolUse((tool("lists", half),), True, dialect=DIALECTS[name]).grammar({})
        assert grammar is not None
        with pytest.raises(InputError):
            Grammars(byte_tokenizer([])).compile(grammar)


def test_other_faults_of_a_schema_are_reported_without_the_text_of_the_grammar() -> None:
    wrong = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=a)b"}}, "description": "x" * 999}
    grammar = ToolUse((tool("lists", wrong),), True).grammar({})
    assert grammar is not None
    with pytest.raises(InputError, match=r"the parameters of lists cannot be used: .*look-ahead") as raised:
        Grammars(byte_tokenizer([])).compile(grammar)
    assert "%json" not in str(raised.value)
    assert len(str(raised.value)) < 400
