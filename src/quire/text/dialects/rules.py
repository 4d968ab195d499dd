"""Parts of grammars in llguidance's Lark notation."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_ONE_LINE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""As `grammar.py` has it: JSON on one line."""


def json_rule(name: str, schema: Mapping[str, Any], tool: str, place: str = "") -> str:
    """A rule for JSON that a schema accepts; a schema's own `x-guidance` wins. The comment says whose schema it is, and
    where it stands there, for `text/refusals.py`."""
    owner = json.dumps({"tool": tool, "place": place})
    return f"// {owner}\n{name}: %json {json.dumps({'x-guidance': _ONE_LINE, **schema})}"


def spelled(text: str, tokens: Mapping[str, int]) -> str:
    """A text as the literals and tokens that are its spelling."""
    found = [token for token in tokens if token in text]
    if not found:
        return quoted(text)
    longest_first = sorted(found, key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, longest_first))})", text)
    return " ".join(f"<[{tokens[part]}]>" if part in tokens else quoted(part) for part in parts if part)


def quoted(text: str) -> str:
    """In ASCII: llguidance reports half of a surrogate pair if it is escaped, and cannot be given it otherwise."""
    return json.dumps(text)
