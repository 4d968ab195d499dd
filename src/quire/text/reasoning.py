"""Separates reasoning from the answer: what a model writes between <think> and </think>, or marks of its own.

A template that ends its prompt with the opening mark has begun the reasoning already; otherwise it begins where the
answer begins with the mark. Marks later in the answer are text like any other.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    begin: str
    end: str
    left_out: tuple[str, ...] = ()
    """Marks around the answer after it, which are not text."""


THINK = ReasoningMarks("<think>", "</think>")


@dataclass(frozen=True, slots=True)
class Parted:
    reasoning: str = ""
    content: str = ""


WITHOUT = ("none", "minimal")
"""Efforts for which a template that can only switch reasoning on or off leaves it out."""
LEVELS = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}
"""Efforts that templates with levels do not know, and the nearest one that they do."""


def effort_switches(effort: str, variables: Collection[str]) -> dict[str, bool | str]:
    """For an effort in OpenAI's words: the switches of a template that reads these variables, as far as it has any."""
    found: dict[str, bool | str] = dict.fromkeys(("enable_thinking", "thinking"), effort not in WITHOUT)
    found["reasoning_effort"] = LEVELS.get(effort, effort)
    return {name: value for name, value in found.items() if name in variables}


class Reasoning:
    """Splits streamed text. What could be the beginning of a mark is held back until it is one or cannot be one."""

    def __init__(self, has_begun: bool, marks: ReasoningMarks = THINK) -> None:
        self.marks = frozenset((marks.begin, marks.end, *marks.left_out))
        self._begin_mark, self._end_mark, self._left_out = marks.begin, marks.end, marks.left_out
        self._state = "reasoning" if has_begun else "before"
        self._is_new = True
        """Nothing of this part was returned yet: line ends next to a mark belong to neither side."""
        self._held = ""

    @classmethod
    def after(cls, prompt: str, marks: ReasoningMarks = THINK) -> Reasoning:
        """For an answer to this prompt, as the template wrote it."""
        return cls(prompt.rstrip().endswith(marks.begin), marks)

    @property
    def is_open(self) -> bool:
        """The reasoning has begun and not ended."""
        return self._state == "reasoning"

    def feed(self, text: str) -> Parted:
        self._held += text
        if self._state == "before":
            self._begin()
        if self._state == "reasoning":
            return self._reason()
        if self._state == "content":
            return self._content()
        return Parted()

    def finish(self) -> Parted:
        """What is still held back."""
        held, self._held = self._held, ""
        return Parted(reasoning=held) if self._state == "reasoning" else Parted(content=held)

    def _begin(self) -> None:
        """Blanks before the opening mark do not count."""
        text = self._held.lstrip()
        if text.startswith(self._begin_mark):
            self._state, self._held = "reasoning", text[len(self._begin_mark) :]
        elif not self._begin_mark.startswith(text):
            self._state, self._is_new = "content", False

    def _reason(self) -> Parted:
        self._open()
        before, mark, behind = self._held.partition(self._end_mark)
        if mark:
            self._state, self._is_new, self._held = "content", True, behind
            return Parted(before.rstrip("\n"), self._content().content)
        sure = len(self._held[: len(self._held) - beginning_of(self._end_mark, self._held)].rstrip("\n"))
        shown, self._held = self._held[:sure], self._held[sure:]
        return Parted(reasoning=shown)

    def _content(self) -> Parted:
        while found := [mark for mark in self._left_out if mark in self._held]:
            self._held = self._held.replace(found[0], "")
        self._held = self._held.lstrip("\n") if self._is_new else self._held
        sure = len(self._held) - max((beginning_of(mark, self._held) for mark in self._left_out), default=0)
        shown, self._held = self._held[:sure], self._held[sure:]
        self._is_new = self._is_new and not shown
        return Parted(content=shown)

    def _open(self) -> None:
        """However the text is cut, line ends at its beginning are left out."""
        if self._is_new:
            self._held = self._held.lstrip("\n")
            self._is_new = not self._held


def beginning_of(mark: str, text: str) -> int:
    """How many of the last characters could be the beginning of a mark."""
    return next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:size])), 0)
