"""Why llguidance cannot use a grammar, in plain words: which keyword, where in the schema, and what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from quire.core.sampling import Grammar, GrammarSort
from quire.text.dialects.closed import NAMED, ONE, SEVERAL

MOST_CHARACTERS = 300
"""Of a message from llguidance."""
_KEYWORDS = re.compile(r'Unimplemented keys: (\["[^\]]*\])')
_LINE = re.compile(r"at (\d+)\(\d+\): (?:failed to compile JSON schema: )?")


@dataclass(frozen=True, slots=True)
class _Part:
    """A schema in a grammar, and whose it is."""

    schema: Any
    owner: str = "the schema"
    place: str = ""


def refusal_of(grammar: Grammar, said: str) -> str:
    """`said`: the message of llguidance about it."""
    parts, reason = _parts(grammar, said), _reason(said)
    keywords = _KEYWORDS.search(said)
    if keywords is not None:
        for part in parts:
            for keyword, place in _places(part, json.loads(keywords[1])):
                where = f"at {place} of {part.owner}" if place else f"of {part.owner}"
                return f"the keyword {keyword} {where} cannot be enforced: leave it out, and check the answer yourself"
    if len(parts) == 1 and grammar.sort == GrammarSort.LARK:
        return f"{parts[0].owner} cannot be used: {reason}"
    return f"the {GrammarSort(grammar.sort).value} grammar cannot be used: {reason}"


def _reason(said: str) -> str:
    """Without the text of the grammar, which the message repeats line by line."""
    lines = [line.strip() for line in _LINE.sub("", said, count=1).splitlines()]
    kept = "; ".join(line for line in lines if line.strip(" ^") and not re.match(r"\d+ \|", line))
    return kept if len(kept) <= MOST_CHARACTERS else kept[: MOST_CHARACTERS - 1] + "…"


def _parts(grammar: Grammar, said: str) -> list[_Part]:
    """The schemas that the message may be about. A comment above a rule says whose its schema is (`rules.py`)."""
    if grammar.sort == GrammarSort.JSON:
        return [_Part(json.loads(grammar.text))]
    lines, found = grammar.text.splitlines(), _LINE.match(said)
    number = int(found[1]) - 1 if found else 0
    if not 0 < number < len(lines) or "%json " not in lines[number] or not lines[number - 1].startswith("// "):
        return []
    owner = json.loads(lines[number - 1].removeprefix("// "))
    schema = json.loads(lines[number].partition("%json ")[2])
    return [_Part(schema, f"the parameters of {owner['tool']}", owner["place"])]


def _places(part: _Part, keywords: list[str]) -> Iterator[tuple[str, str]]:
    """Keywords, and where the part has them."""
    waiting = [(part.place, part.schema)]
    while waiting:
        place, schema = waiting.pop(0)
        if isinstance(schema, Mapping):
            yield from ((keyword, place) for keyword in keywords if keyword in schema)
            waiting += [(f"{place}.{inner}".lstrip("."), one) for inner, one in _inner(schema)]


def _inner(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in schema.items():
        if key in NAMED and isinstance(value, Mapping):
            yield from ((f"{key}.{name}", one) for name, one in value.items())
        elif key in SEVERAL and isinstance(value, list):
            yield from ((f"{key}.{number}", one) for number, one in enumerate(value))
        elif key in ONE:
            yield key, value
