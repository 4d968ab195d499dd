"""Harmony, the format of gpt-oss: an answer is a sequence of messages in channels.

    <|channel|>analysis<|message|>…<|end|>                                                    reasoning
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>   a tool call
    <|start|>assistant<|channel|>final<|message|>…<|return|>                                  the answer

Messages to a tool are passed on with one form of header, whatever the order and the type in their own: `ToolCalls`
reads them. All other messages lose their marks.
"""

from __future__ import annotations

import re

from quire.text.dialects.cursor import Cursor, Waiting
from quire.text.reasoning import Parted, ReasoningMarks

CHANNELS = ReasoningMarks("<|channel|>analysis<|message|>", "<|end|>")
"""Says that `Channels` splits an answer."""
_CHANNEL, _START, _MESSAGE, _CALL = "<|channel|>", "<|start|>", "<|message|>", "<|call|>"
_ENDS = ("<|end|>", _CALL, "<|return|>", _START, _CHANNEL)
_RECIPIENT = re.compile(r"to=([^\s<]+)")


class Channels:
    """Splits streamed text, as `Reasoning` does."""

    marks = frozenset((_MESSAGE, "<|constrain|>", *_ENDS))

    def __init__(self) -> None:
        self._cursor = Cursor()
        self._reasoning = self._content = ""
        self.is_open = False
        """A message of reasoning has begun and not ended."""
        self._reading = self._read()

    def feed(self, text: str) -> Parted:
        self._cursor.add(text)
        return self._continue()

    def finish(self) -> Parted:
        """What is still held back."""
        self._cursor.is_over = True
        return self._continue()

    def _continue(self) -> Parted:
        next(self._reading, None)
        parted = Parted(self._reasoning, self._content)
        self._reasoning = self._content = ""
        return parted

    def _read(self) -> Waiting[None]:
        """Text outside of messages belongs to the answer."""
        while (mark := (yield from self._pass_on(is_reasoning=False))) is not None:
            while mark in (_START, _CHANNEL):
                header = yield from self._cursor.until(_MESSAGE)
                if header is None:
                    self._content += self._cursor.taken
                    return
                mark = yield from self._message(header)

    def _message(self, header: str) -> Waiting[str | None]:
        """The message after this header; the mark that ends it, which is read unless it begins another one."""
        recipient = _RECIPIENT.search(header)
        is_analysis = header.partition(_CHANNEL)[2].startswith("analysis")
        self._cursor.drop()
        if recipient is None:
            return (yield from self._pass_on(is_analysis))
        self._content += f"{_CHANNEL}commentary to={recipient[1]} <|constrain|>json{_MESSAGE}"
        mark = yield from self._pass_on(is_reasoning=False)
        self._content += _CALL if mark is not None else ""
        return mark

    def _pass_on(self, is_reasoning: bool) -> Waiting[str | None]:
        """Text up to the next mark."""
        cursor, self.is_open = self._cursor, is_reasoning
        while True:
            text, mark = cursor.certain(_ENDS)
            if is_reasoning:
                self._reasoning += text
            else:
                self._content += text
            if mark is not None:
                cursor.at += 0 if mark in (_START, _CHANNEL) else len(mark)
                cursor.drop()
                return mark
            cursor.drop()
            if not (yield from cursor.more()):
                rest = cursor.certain(())[0]
                self._reasoning += rest if is_reasoning else ""
                self._content += "" if is_reasoning else rest
                return None
