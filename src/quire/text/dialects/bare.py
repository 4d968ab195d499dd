"""Arguments with bare keys: `{city:<|"|>Rome<|"|>,days:3,more:{list:[1,true]}}`. Text stands between quote marks of the
dialect's own, and may hold any other character."""

from __future__ import annotations

import json
from typing import Any

from quire.text.conversation import MOST_LEVELS
from quire.text.dialects.json_text import BLANKS

_ENDS = ",}]"


def bare_object(text: str, quote: str) -> dict[str, Any] | None:
    """The object that the text is; None: it is none."""
    reading = _Reading(text, quote)
    try:
        value = reading.value(0)
    except (IndexError, ValueError):
        return None
    return value if isinstance(value, dict) and not reading.rest.strip(BLANKS) else None


class _Reading:
    def __init__(self, text: str, quote: str) -> None:
        self._text, self._quote, self._at = text, quote, 0

    @property
    def rest(self) -> str:
        return self._text[self._at :]

    def value(self, level: int) -> Any:
        if level > MOST_LEVELS:
            raise ValueError("nested too deeply")
        self._skip_blanks()
        if self._text.startswith(self._quote, self._at):
            return self._quoted()
        if self._text[self._at] == "{":
            return dict(self._items("}", level))
        if self._text[self._at] == "[":
            return [value for _, value in self._items("]", level)]
        return _literal(self._up_to(_ENDS))

    def _items(self, end: str, level: int) -> list[tuple[str, Any]]:
        """Of an object, with their keys, or of a list, without."""
        self._at += 1
        items: list[tuple[str, Any]] = []
        self._skip_blanks()
        while self._text[self._at] != end:
            key = self._key() if end == "}" else ""
            items.append((key, self.value(level + 1)))
            self._skip_blanks()
            if self._text[self._at] == ",":
                self._at += 1
                self._skip_blanks()
            elif self._text[self._at] != end:
                raise ValueError("no comma between two values")
        self._at += 1
        return items

    def _key(self) -> str:
        if self._text.startswith(self._quote, self._at):
            key = self._quoted()
            self._skip_blanks()
        else:
            key = self._up_to(":" + _ENDS).strip(BLANKS)
        if not key or self._text[self._at] != ":":
            raise ValueError("no key")
        self._at += 1
        return key

    def _quoted(self) -> str:
        begin = self._at + len(self._quote)
        end = self._text.index(self._quote, begin)
        self._at = end + len(self._quote)
        return self._text[begin:end]

    def _up_to(self, ends: str) -> str:
        begin = self._at
        while self._text[self._at] not in ends:
            self._at += 1
        return self._text[begin : self._at]

    def _skip_blanks(self) -> None:
        while self._text[self._at] in BLANKS:
            self._at += 1


def _literal(text: str) -> Any:
    """A number, a truth or null; other text without quotes stays text."""
    text = text.strip(BLANKS)
    if not text:
        raise ValueError("no value")
    try:
        return json.loads(text, parse_constant=str)
    except ValueError:
        return text
