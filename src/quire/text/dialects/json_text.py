"""Checks JSON character by character, to pass the arguments of a call on before they are complete."""

from __future__ import annotations

import re

BLANKS = " \t\r\n"
_SCALAR = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?|true|false|null")
_IN_SCALAR = frozenset("+-.0123456789Eaeflnrstu")
_HEX = frozenset("0123456789abcdefABCDEF")


class JsonText:
    """One JSON object or list. `accept` says whether JSON can continue so; after a False nothing more is accepted."""

    def __init__(self) -> None:
        self._open: list[str] = []
        """The brackets that are open, by what closes them."""
        self._expected = "value"
        self._scalar = ""
        self._hex_digits = 0

    @property
    def depth(self) -> int:
        return len(self._open)

    @property
    def is_closed(self) -> bool:
        return self._expected == "nothing"

    def accept(self, character: str) -> bool:
        if self._expected in ("string", "key text", "escape", "key escape"):
            return self._in_string(character)
        if self._expected == "scalar":
            if character in _IN_SCALAR:
                self._scalar += character
                return True
            if not _SCALAR.fullmatch(self._scalar):
                return False
            self._expected = "comma"
        return character in BLANKS or self._structure(character)

    def _structure(self, character: str) -> bool:
        expected = self._expected
        if expected in ("value", "value or end") and character not in "]},:":
            return self._value(character)
        if expected in ("key", "key or end") and character == '"':
            self._expected = "key text"
        elif expected == "colon" and character == ":":
            self._expected = "value"
        elif expected == "comma" and character == ",":
            self._expected = "key" if self._open[-1] == "}" else "value"
        elif expected in ("comma", "key or end", "value or end") and self._open[-1] == character:
            self._open.pop()
            self._expected = "comma" if self._open else "nothing"
        else:
            return False
        return True

    def _value(self, character: str) -> bool:
        if character in "{[":
            self._open.append("}" if character == "{" else "]")
            self._expected = "key or end" if character == "{" else "value or end"
        elif not self._open:
            return False
        elif character == '"':
            self._expected = "string"
        elif character in _IN_SCALAR:
            self._expected, self._scalar = "scalar", character
        else:
            return False
        return True

    def _in_string(self, character: str) -> bool:
        is_key = self._expected.startswith("key")
        if self._hex_digits:
            self._hex_digits -= 1
            return character in _HEX
        if self._expected.endswith("escape"):
            self._expected = "key text" if is_key else "string"
            self._hex_digits = 4 if character == "u" else 0
            return character in '"\\/bfnrtu'
        if character == "\\":
            self._expected = "key escape" if is_key else "escape"
        elif character == '"':
            self._expected = "colon" if is_key else "comma"
        return character >= " "
