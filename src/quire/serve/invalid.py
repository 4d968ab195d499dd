"""Errors of a schema in a body, in the API's words: which field, what was given, what is allowed.

n is 17: give at most 16
stop is 3: give text or a list                (a field may have one of several types: what each of them allows)
messages.0.role is missing: give it
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from quire.serve.errors import ApiError
from quire.text.conversation import TEXT_ALONE

THE_BODY = "the body"
MOST_CHARACTERS, MOST_ITEMS = 40, 3
"""Most characters and items of a given value that a message quotes."""
ALLOWED = {
    "string_type": "text",
    "string_unicode": "text of whole characters",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a smaller number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "none_required": "null, or leave it out",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
    "too_short": "at least {min_length} item{s}",
    "too_long": "at most {max_length} items",
    "string_too_short": "at least {min_length} character{s}",
    "string_too_long": "at most {max_length} characters",
    "string_pattern_mismatch": "text that matches {pattern}",
    "literal_error": "{one_of}{expected}",
    "union_tag_invalid": "one whose {discriminator} is one of {expected_tags}",
    "union_tag_not_found": "an object with a {discriminator}",
}
"""By pydantic's name of the error."""
_ADAPTER = "Quire runs no adapters, so merge it into the weights and serve the merged folder"
INSTEAD = {
    **dict.fromkeys(("lora", "lora_name", "lora_path", "lora_request", "adapter", "adapter_id", "adapters"), _ADAPTER),
    **dict.fromkeys(("image", "images", "image_url", "video", "videos", "audio", "modalities"), TEXT_ALONE),
    "conversation": "use previous_response_id",
    "prompt": "send its text as instructions and input",
}
"""By field that only other servers have: what to do without it."""
Mistake = Mapping[str, Any]


def refusal_of(mistakes: Sequence[Mistake], body: Any) -> ApiError:
    """One sentence about the most informative error; fields that Quire does not have are refused by name."""
    named = [(_path(mistake, body), mistake) for mistake in mistakes]
    for path, mistake in named:
        if mistake["type"] == "extra_forbidden":
            name, instead = _name(path), INSTEAD.get(path[-1], "leave it out")
            return ApiError(400, f"{name} is not supported: {instead}", "unsupported_field", name)
    for path, mistake in named:
        if mistake["type"] == "value_error":
            told = f"{_name(path)}: {mistake['ctx']['error']}"
            return ApiError(400, told, "invalid_value", _name(path) if path else None)
    deepest = max((path for path, _ in named), key=len)
    about = [mistake for path, mistake in named if path == deepest]
    return ApiError(400, _sentence(_name(deepest), about), "invalid_value", _name(deepest) if deepest else None)


def _name(path: Sequence[str]) -> str:
    return ".".join(path) or THE_BODY


def _sentence(name: str, mistakes: Sequence[Mistake]) -> str:
    first = mistakes[0]
    if first["type"] == "missing":
        return f"{name} is missing: give it"
    verb = "has the key" if first["loc"][-1] == "[key]" else "is"
    allowed = dict.fromkeys(_allowed(mistake) for mistake in mistakes)
    return f"{name} {verb} {_shown(first['input'])}: give {' or '.join(allowed)}"


def _allowed(mistake: Mistake) -> str:
    context = mistake.get("ctx", {})
    told = {key: _told(value) for key, value in context.items()}
    plural = "" if context.get("min_length") == 1 else "s"
    one_of = "one of " if " or " in told.get("expected", "") else ""
    return ALLOWED.get(mistake["type"], "something else").format(**told, s=plural, one_of=one_of)


def _told(value: Any) -> str:
    """Numbers as people write them, words as JSON does."""
    if isinstance(value, (int, float)):
        return f"{value:g}" if isinstance(value, float) else f"{value:,}"
    return str(value).replace("'", '"').replace("False", "false")


def _shown(given: Any) -> str:
    """The beginning of a value, on one level: bodies may be long and deep."""
    more = ", …" if isinstance(given, (dict, list)) and len(given) > MOST_ITEMS else ""
    if isinstance(given, dict):
        pairs = (f"{_scalar(name)}: {_scalar(value)}" for name, value in islice(given.items(), MOST_ITEMS))
        return "{" + ", ".join(pairs) + more + "}"
    if isinstance(given, list):
        return "[" + ", ".join(map(_scalar, given[:MOST_ITEMS])) + more + "]"
    return _scalar(given)


def _scalar(given: Any) -> str:
    if isinstance(given, (dict, list)):
        return "{…}" if isinstance(given, dict) else "[…]"
    text = json.dumps(given[:MOST_CHARACTERS] if isinstance(given, str) else given, default=str)
    is_cut = isinstance(given, str) and len(given) > MOST_CHARACTERS
    return text[:-1] + '…"' if is_cut else text[:MOST_CHARACTERS]


def _path(mistake: Mistake, body: Any) -> tuple[str, ...]:
    """Only names that are in the body, or missing there: alternatives of a schema add their own names to the path."""
    source, *parts = mistake["loc"]
    if source != "body":
        return tuple(map(str, parts))
    found, value = [], body
    for place, part in enumerate(parts):
        is_last = place == len(parts) - 1
        is_there = part in value if isinstance(value, dict) else isinstance(value, list) and isinstance(part, int)
        if is_there and (not is_last or mistake["type"] != "missing"):
            value = value[part]
        elif not (is_last and mistake["type"] == "missing"):
            continue
        found.append(str(part))
    if parts and parts[-1] == "[key]":
        found.pop()
    return tuple(found)
