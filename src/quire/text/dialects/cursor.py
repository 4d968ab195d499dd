"""Text that arrives in pieces, read as if it were whole.

A reader is written as a generator. Where the next decision needs more text than there is, it yields, and continues when
a piece has arrived or the text is over. A decision depends on characters alone, so the pieces do not affect it:

    if (yield from cursor.literal("<tool_call>")):      waits while "<tool_" has arrived, not longer
        ...
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from typing import TypeVar

from quire.text.dialects.json_text import BLANKS, JsonText
from quire.text.reasoning import beginning_of

Result = TypeVar("Result")
Waiting = Generator[None, None, Result]


class Cursor:
    def __init__(self) -> None:
        self.at = 0
        """Characters of the held text that were read."""
        self.is_over = False
        self._text = ""

    def add(self, text: str) -> None:
        self._text += text

    @property
    def is_at_end(self) -> bool:
        """All that has arrived was read."""
        return self.at == len(self._text)

    @property
    def taken(self) -> str:
        """What was read and not dropped."""
        return self._text[: self.at]

    def drop(self) -> None:
        """Forgets what was read."""
        self._text, self.at = self._text[self.at :], 0

    def more(self) -> Waiting[bool]:
        """Waits for more text; False: the text is over."""
        size = len(self._text)
        while len(self._text) == size and not self.is_over:
            yield
        return len(self._text) > size

    def character(self) -> Waiting[str]:
        """The next character, which stays; empty: the text is over."""
        while self.at >= len(self._text):
            if not (yield from self.more()):
                return ""
        return self._text[self.at]

    def blanks(self) -> Waiting[None]:
        yield from self.run(BLANKS)

    def one_of(self, marks: Collection[str]) -> Waiting[str | None]:
        """Reads the longest of these marks that comes next."""
        longest = max(map(len, marks), default=0)
        while True:
            rest = self._text[self.at : self.at + longest]
            if not any(len(mark) > len(rest) and mark.startswith(rest) for mark in marks):
                break
            if not (yield from self.more()):
                break
        found = max((mark for mark in marks if rest.startswith(mark)), key=len, default=None)
        self.at += len(found or "")
        return found

    def literal(self, mark: str) -> Waiting[bool]:
        return (yield from self.one_of((mark,))) is not None

    def until(self, mark: str) -> Waiting[str | None]:
        """Reads the text before this mark, and the mark; None: the text is over without it, and all of it is read."""
        begin = look = self.at
        while (found := self._text.find(mark, look)) < 0:
            look = max(begin, len(self._text) - len(mark) + 1)
            if not (yield from self.more()):
                self.at = len(self._text)
                return None
        self.at = found + len(mark)
        return self._text[begin:found]

    def rest(self) -> Waiting[str]:
        """Reads all text, once it is over."""
        begin = self.at
        while (yield from self.more()):
            pass
        self.at = len(self._text)
        return self._text[begin:]

    def run(self, characters: str) -> Waiting[str]:
        """Reads as many of these characters as come next."""
        begin = self.at
        while True:
            character = yield from self.character()
            if not character or character not in characters:
                return self._text[begin : self.at]
            self.at += 1

    def json(self, scan: JsonText, depth: int) -> str:
        """Reads what has arrived of JSON, up to where it closes to this depth or breaks."""
        begin = self.at
        while self.at < len(self._text) and scan.accept(self._text[self.at]):
            self.at += 1
            if scan.depth == depth:
                break
        return self._text[begin : self.at]

    def certain(self, marks: Collection[str]) -> tuple[str, str | None]:
        """Reads the text up to the first of these marks, or as far as none can begin; and that mark, which stays."""
        found = min(((place, mark) for mark in marks if (place := self._text.find(mark, self.at)) >= 0), default=None)
        begin, mark = self.at, None
        if found is not None:
            self.at, mark = found
        else:
            rest = self._text[begin:]
            held = 0 if self.is_over else max((beginning_of(mark, rest) for mark in marks), default=0)
            self.at = len(self._text) - held
        return self._text[begin : self.at], mark
