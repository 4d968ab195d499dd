"""Argument values that a dialect writes as text, converted by the schema of the tool."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

MOST_REFERENCES = 16
"""References that are followed from one schema to the next."""
_KINDS: dict[str, tuple[type, ...]] = {
    "integer": (int, float),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}


def value_of(text: str, schema: Any, root: Mapping[str, Any]) -> Any:
    """Text for a string stays as it is, other types are read as JSON. What cannot be read so stays text. `root`: the
    schema that references refer to."""
    types = types_of(schema, root)
    if "string" in types and not ("null" in types and text.strip() == "null"):
        return text
    try:
        value = json.loads(text.strip().lower() if types == {"boolean"} else text)
    except (ValueError, RecursionError):
        return text
    return value if not types or _is_of(value, types) else text


def types_of(schema: Any, root: Mapping[str, Any], references: int = MOST_REFERENCES) -> set[str]:
    """The JSON types that a schema allows, as far as it says so directly; empty: it does not."""
    if not isinstance(schema, Mapping) or not references:
        return set()
    if isinstance(schema.get("$ref"), str):
        return types_of(_target(schema["$ref"], root), root, references - 1)
    if "type" in schema:
        return {str(one) for one in listed(schema["type"]) or [schema["type"]]}
    if "const" in schema or "enum" in schema:
        return {_type_of(one) for one in listed(schema.get("enum")) or [schema.get("const")]}
    branches = [*listed(schema.get("anyOf")), *listed(schema.get("oneOf"))]
    found = [types_of(branch, root, references - 1) for branch in branches]
    return set().union(*found) if all(found) else set()


def listed(value: Any) -> list[Any]:
    """What a keyword lists; nothing, if its value is no list, which is a fault of the schema."""
    return value if isinstance(value, list) else []


def _target(reference: str, root: Mapping[str, Any]) -> Any:
    found: Any = root if reference.startswith("#") else None
    for name in reference.removeprefix("#").split("/")[1:]:
        found = found.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found


def _is_of(value: Any, types: set[str]) -> bool:
    if isinstance(value, bool):
        return "boolean" in types
    return any(isinstance(value, _KINDS.get(one, ())) for one in types)


def _type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    return next((name for name, kinds in _KINDS.items() if isinstance(value, kinds)), "string")
