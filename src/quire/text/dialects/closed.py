"""Closes the objects of a tool's parameters: in an enforced call an object has no properties but those of its schema.

A schema opens an object with additionalProperties, patternProperties or unevaluatedProperties. The parts of an allOf,
and schemas next to one, describe one object together: they stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from quire.text.dialects.values import listed

_OPENS = ("additionalProperties", "patternProperties", "unevaluatedProperties", "allOf")
NAMED = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
ONE = ("items", "contains", "additionalProperties", "propertyNames", "not", "if", "then", "else")
SEVERAL = ("anyOf", "oneOf", "prefixItems", "items", "allOf")


def closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with `additionalProperties: false` in every object that has properties and is not opened."""
    shared = {str(part.get("$ref")) for part in _parts_of_all(schema)}
    return dict(_closed(schema, shared, "#", may_close=True))


def _closed(schema: Any, shared: set[str], place: str, may_close: bool) -> Any:
    """`shared`: places of schemas that an allOf refers to."""
    if not isinstance(schema, Mapping):
        return schema
    own = {key: _inner(key, value, shared, f"{place}/{key}") for key, value in schema.items()}
    is_closed = may_close and "properties" in schema and place not in shared
    if is_closed and not any(key in schema for key in _OPENS) and not _has_open_branches(schema):
        own["additionalProperties"] = False
    return own


def _inner(key: str, value: Any, shared: set[str], place: str) -> Any:
    if key in NAMED and isinstance(value, Mapping):
        return {name: _closed(one, shared, f"{place}/{name}", True) for name, one in value.items()}
    if key in SEVERAL and isinstance(value, list):
        return [_closed(one, shared, f"{place}/{number}", key != "allOf") for number, one in enumerate(value)]
    return _closed(value, shared, place, True) if key in ONE else value


def _has_open_branches(schema: Mapping[str, Any]) -> bool:
    """Whether parts of it describe properties of the same object."""
    parts = [part for key in ("anyOf", "oneOf") for part in listed(schema.get(key))]
    parts += [schema[key] for key in ("then", "else", "$ref") if key in schema]
    return any(not isinstance(part, Mapping) or "properties" in part or "$ref" in part for part in parts)


def _parts_of_all(schema: Any) -> Iterator[Mapping[str, Any]]:
    """The parts of every allOf that has several, or stands next to properties."""
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        waiting += one.values() if isinstance(one, Mapping) else one if isinstance(one, list) else ()
        parts = one.get("allOf") if isinstance(one, Mapping) else None
        if isinstance(parts, list) and (len(parts) > 1 or "properties" in one):
            yield from (part for part in parts if isinstance(part, Mapping))
