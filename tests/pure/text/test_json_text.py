"""The check of JSON as it arrives agrees with the parser of the standard library."""

from __future__ import annotations

import json
import random
from typing import Any, NoReturn

import pytest

from quire.text.dialects.json_text import JsonText

GOOD = '{"a": [1, -2.5e+3, true, null, "x\\n\\u00e9\\"", {}], "b": {"c": [[], ""]}, "d": false}'
LETTERS = '{}[]",:\\ \n0123456789-+.eEtrufalsn/x'


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def is_json(text: str) -> bool:
    try:
        value: Any = json.loads(text, parse_constant=_refuse)
    except ValueError:
        return False
    return isinstance(value, dict | list)


def is_accepted(text: str) -> bool:
    """All characters are accepted, and nothing is open at the end."""
    scan = JsonText()
    return all(scan.accept(character) for character in text) and scan.is_closed


@pytest.mark.law
def test_a_text_is_accepted_exactly_if_it_is_a_json_object_or_list() -> None:
    """Of texts with up to three random edits; many of them are JSON, and many are not."""
    draw, counts = random.Random(1), [0, 0]
    for _ in range(4000):
        text = GOOD
        for _ in range(draw.randint(0, 3)):
            at = draw.randrange(len(text))
            text = text[:at] + draw.choice(("", draw.choice(LETTERS))) + text[at + draw.randint(0, 1) :]
        assert is_accepted(text) == is_json(text), text
        counts[is_json(text)] += 1
    assert min(counts) > 500
