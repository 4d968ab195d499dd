"""Names and arguments in notations other than JSON, read with a cursor."""

from __future__ import annotations

import json
import string
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from quire.text.dialects.cursor import Cursor, Waiting
from quire.text.dialects.dialect import Parameters, elements_of
from quire.text.dialects.values import types_of, value_of

_KEYS = ('"arguments"', '"parameters"')
_WORD = string.ascii_letters + string.digits + "_-"


def header_name(cursor: Cursor, header: str, names: Collection[str]) -> Waiting[str | None]:
    """The name of a known tool in a header, with the blanks after it; None: the text does not match the header."""
    name = None
    for element in elements_of(header):
        yield from cursor.blanks()
        if element == "{name}":
            found = name = yield from cursor.one_of(names)
        elif element == "{json_name}":
            quoted = yield from cursor.one_of([json.dumps(one) for one in names])
            found = name = None if quoted is None else json.loads(quoted)
        elif element in ("{number}", "{word}"):
            found = yield from cursor.run(string.digits if element == "{number}" else _WORD)
        else:
            found = yield from cursor.one_of(_KEYS if element == "{json_key}" else (element,))
        if not found:
            return None
    yield from cursor.blanks()
    return name


def text_arguments(
    cursor: Cursor, parameters: Parameters, end: str, schema: Mapping[str, Any]
) -> Waiting[dict[str, Any] | None]:
    """Arguments as text, each with its own marks, up to `end`, which stays; None: they are malformed."""
    values: dict[str, Any] = {}
    while (key := (yield from _key(cursor, parameters.begin))) is not None:
        text = yield from cursor.until(parameters.end)
        if text is None:
            return None
        text = text.removeprefix(parameters.line).removesuffix(parameters.line)
        own = _property(schema, key.name)
        is_text = key.is_text and not types_of(own, schema)  # a schema that names types decides
        values[key.name] = text if is_text else value_of(text, own, schema)
    yield from cursor.blanks()
    begin = cursor.at
    is_over = not (yield from cursor.character())
    is_end = yield from cursor.literal(end)
    cursor.at = begin
    return values if is_over or is_end else None


class _Key(NamedTuple):
    name: str
    is_text: bool
    """The notation says that the value is text; False: it does not say so."""


def _key(cursor: Cursor, template: str) -> Waiting[_Key | None]:
    """The next key; None: there is none."""
    begin = cursor.at
    before, after = template.split("{key}")
    first, *rest = elements_of(after)
    if (yield from _literals(cursor, elements_of(before))) is None:
        cursor.at = begin
        return None
    name = yield from cursor.until(first)
    matched = yield from _literals(cursor, rest)
    return None if name is None or matched is None else _Key(name, "true" in matched)


def _literals(cursor: Cursor, literals: Collection[str]) -> Waiting[list[str] | None]:
    """What matched each of these, blanks aside; None: the text differs."""
    matched: list[str] = []
    for literal in literals:
        yield from cursor.blanks()
        found = yield from cursor.one_of(("true", "false") if literal == "{string}" else (literal,))
        if found is None:
            return None
        matched.append(found)
    return matched


def _property(schema: Mapping[str, Any], key: str) -> Any:
    properties = schema.get("properties")
    return properties.get(key) if isinstance(properties, Mapping) else None
