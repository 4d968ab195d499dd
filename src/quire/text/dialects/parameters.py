"""Rules for arguments that a dialect writes one by one, each between its own marks.

Text for a string is any text without the closing mark, or one of an enum; other types are JSON on one line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quire.text.dialects.dialect import Parameters
from quire.text.dialects.rules import json_rule, quoted, spelled
from quire.text.dialects.values import listed

_OBJECT_KEYS = frozenset(
    (
        "type",
        "properties",
        "required",
        "additionalProperties",
        "title",
        "description",
        "$defs",
        "definitions",
        "$schema",
    )
)
_STRING_KEYS = frozenset(("type", "enum", "title", "description", "default", "examples"))
_JSON_TYPES = ("integer", "number", "boolean", "object", "array", "null")
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_.-]+")
_PLAIN_TEXT = re.compile(r"[^<>\s]([^<>\r\n]*[^<>\s])?")


@dataclass(frozen=True, slots=True)
class ParameterRules:
    parameters: Parameters
    tokens: Mapping[str, int]
    """Added tokens of the tokenizer, by their text."""
    tool: str

    def of(self, name: str, schema: Mapping[str, Any]) -> list[str] | None:
        """A rule of this name for all arguments, in the order of the schema, and the rules it uses. None: the schema
        asks for more than this notation can show."""
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, Mapping) or any(key not in list(properties) for key in listed(required)):
            return None
        if not schema.keys() <= _OBJECT_KEYS or schema.get("additionalProperties") or not isinstance(required, list):
            return None
        uses, rules = [], []
        shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        for number, (key, own) in enumerate(properties.items()):
            value = self._value(f"{name}_{number}", own, shared, f"properties.{key}")
            if value is None or not _PLAIN_KEY.fullmatch(key):
                return None
            is_text = own["type"] == "string"
            begin = spelled(self.parameters.begin_of(key, is_text) + self.parameters.line, self.tokens)
            rules += [f"{name}_{number}: {begin} {value[0]} {quoted(chr(10))}", *value[1:]]
            uses.append(f"{name}_{number}" + ("" if key in required else "?"))
        return [f"{name}: {' '.join(uses) or quoted('')}", *rules]

    def _value(self, name: str, schema: Any, shared: Mapping[str, Any], place: str) -> list[str] | None:
        """The text of a value and of its closing mark, and the rules that it uses."""
        if not isinstance(schema, Mapping) or "type" not in schema:
            return None
        end = spelled(self.parameters.line + self.parameters.end, self.tokens)
        if schema["type"] in _JSON_TYPES:
            whole = {**schema, **shared} if "$ref" in json.dumps(schema) else schema
            return [f"{name}_value {end}", json_rule(f"{name}_value", whole, self.tool, place)]
        if schema["type"] != "string" or not schema.keys() <= _STRING_KEYS:
            return None
        if "enum" not in schema:
            return self._text(name)
        choices = listed(schema["enum"])
        is_plain = choices and all(isinstance(one, str) and _PLAIN_TEXT.fullmatch(one) for one in choices)
        return [f"({' | '.join(map(quoted, choices))}) {end}"] if is_plain else None

    def _text(self, name: str) -> list[str]:
        """Text up to the closing mark, which is a token, has one in it, or is the first text that reads so. What the
        mark has before its token ends the text: only a token ends a rule that any text matches."""
        end = self.parameters.end
        begins = [end.find(token) for token in self.tokens if token in end]
        if not begins:
            return [f"{name}_text", f"{name}_text[suffix={quoted(end)}]: /(?s:.*)/"]
        before, rest = end[: min(begins)], end[min(begins) :]
        mark, rule = re.escape(end).replace("/", r"\/"), f"{name.upper()}_TEXT"
        text = f"/(?s:.*){re.escape(before).replace('/', chr(92) + '/')}/ & ~/(?s:.*){mark}(?s:.*)/"
        return [f"{rule} {spelled(rest, self.tokens)}", f"{rule}: {text}"]
