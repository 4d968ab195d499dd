"""The grammar of an answer that must call a tool, in the dialect of the model and in llguidance's Lark notation.

    <tool_call>{"name": "weather", "arguments": {…}}</tool_call>

    start: call
    call: call_0
    call_0: <[151657]> "\n{\"name\": \"weather\", \"arguments\": " arguments_0 "}\n" <[151658]>
    arguments_0: %json {…}

Marks that are tokens of the tokenizer are enforced as these tokens. Where a dialect writes values as text and a schema
asks for more than text can show, the call is enforced as one JSON object, which every reader accepts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from quire.core.errors import InputError
from quire.core.sampling import Grammar, GrammarSort
from quire.text.conversation import MOST_LEVELS, is_deeper
from quire.text.dialects.calls import Tool, parameters_of
from quire.text.dialects.closed import closed
from quire.text.dialects.dialect import Dialect, Written
from quire.text.dialects.parameters import ParameterRules
from quire.text.dialects.rules import json_rule, spelled
from quire.text.dialects.table import PLAIN
from quire.text.dialects.values import listed

_PLACES = re.compile(r"(\{(?:name|number|arguments|parameters)\})")


def call_grammar(dialect: Dialect, tools: Sequence[Tool], tokens: Mapping[str, int], is_single: bool) -> Grammar:
    """`tokens`: added tokens of the tokenizer, by their text. `is_single`: the answer has one call."""
    schemas = [_object_schema(tool) for tool in tools]
    names = [str(tool["function"]["name"]) for tool in tools]
    rules: list[str] | None = []
    for number, (name, schema) in enumerate(zip(names, schemas, strict=True)):
        own = _call_rules(dialect, number, name, schema, tokens)
        rules = None if rules is None or own is None else rules + own
    if rules is None:
        return call_grammar(PLAIN, tools, tokens, True)
    head = [_start(dialect.written, tokens, is_single), f"call: {' | '.join(f'call_{n}' for n in range(len(names)))}"]
    return Grammar(GrammarSort.LARK, "\n".join([*head, *rules]))


def _object_schema(tool: Tool) -> dict[str, Any]:
    """Arguments are an object, whether the schema says so or not."""
    name, parameters = tool["function"]["name"], parameters_of(tool)
    if is_deeper(parameters, MOST_LEVELS):
        raise InputError(f"the parameters of {name} are nested deeper than {MOST_LEVELS} levels: flatten them")
    schema = closed(parameters)
    given = schema.get("type", "object")
    if given != "object" and "object" not in listed(given):
        raise InputError(
            f"the parameters of {name} have the type {given!r:.40}: arguments are an object, so give object"
        )
    return {**schema, "type": "object"}


def _start(written: Written, tokens: Mapping[str, int], is_single: bool) -> str:
    opening, closing = spelled(written.opening, tokens), spelled(written.closing, tokens)
    if is_single or written.between is None:
        return f"start: {opening} call {closing}"
    return f"start: {opening} call ({spelled(written.between, tokens)} call)* {closing}"


def _call_rules(
    dialect: Dialect, number: int, name: str, schema: Mapping[str, Any], tokens: Mapping[str, int]
) -> list[str] | None:
    """None: this call cannot be enforced in this dialect."""
    written = dialect.written.call
    if dialect.parameters is None:
        rules: list[str] | None = [json_rule(f"arguments_{number}", schema, name)]
    else:
        rules = ParameterRules(dialect.parameters, tokens, name).of(f"arguments_{number}", schema)
    if rules is None:
        return None
    shown = json.dumps(name)[1:-1] if '"name"' in written else name
    places = {
        "{name}": spelled(shown, {}),
        "{number}": "/[0-9]{1,3}/",
        "{arguments}": f"arguments_{number}",
        "{parameters}": f"arguments_{number}",
    }
    parts = [places.get(part) or spelled(part, tokens) for part in _PLACES.split(written)]
    return [f"call_{number}: {' '.join(parts)}", *rules]
