"""What a dialect is: the marks that its reader looks for, and the text that enforced calls have."""

from __future__ import annotations

import re
from dataclasses import dataclass

from quire.options.dialects import ToolDialect
from quire.text.dialects.harmony import CHANNELS
from quire.text.reasoning import THINK, ReasoningMarks

_PLACES = re.compile(r"(\{[a-z_]+\})|\s+")


@dataclass(frozen=True, slots=True)
class Written:
    """The text of enforced calls: `opening call between call closing`."""

    call: str
    """With {name}, and {arguments} (JSON) or {parameters}; {number} is any number."""
    opening: str = ""
    between: str | None = None
    """None: an answer has one call."""
    closing: str = ""


@dataclass(frozen=True, slots=True)
class Parameters:
    """How each argument is written if arguments are not JSON: `begin value end`."""

    begin: str
    """With {key}; {string} says whether the value is text (true) or JSON (false)."""
    end: str
    line: str = ""
    """A line end around the value, which is not part of it."""

    def begin_of(self, key: str, is_text: bool) -> str:
        return self.begin.replace("{key}", key).replace("{string}", "true" if is_text else "false")


@dataclass(frozen=True, slots=True)
class Dialect:
    """Marks are read in any order of calls and text, and blanks between them do not count. A reader accepts one JSON
    object that is the whole answer in every dialect."""

    name: ToolDialect
    families: str
    written: Written
    found_by: tuple[tuple[str, ...], ...] = ()
    """A chat template is in this dialect if it has all marks of one of these groups …"""
    without: tuple[str, ...] = ()
    """… and none of these."""
    json_marks: tuple[str, ...] = ()
    """What comes before JSON with a call's name and arguments: one object or a list."""
    json_ends: tuple[str, ...] = ()
    """What may come after it."""
    separator: str = ""
    """What may stand between such objects; empty: there is one."""
    opening: str = ""
    """What may come before the first of `headers`."""
    headers: tuple[str, ...] = ()
    """Ways to write the name before the arguments, the longest first."""
    footers: tuple[str, ...] = ()
    """What may come after the arguments, in this order."""
    parameters: Parameters | None = None
    """Arguments after a header; None: they are a JSON object."""
    quote: str = ""
    """What text stands between, in arguments with bare keys (`bare.py`); empty: there are none."""
    python_marks: tuple[tuple[str, str], ...] = ()
    """What comes before and after calls written as Python."""
    is_python: bool = False
    """An answer that begins with a list of calls in Python is read as such."""
    explained: str = ""
    """How a call is explained to the model if its template has no place for tools; empty: as it is enforced."""
    has_text_arguments: bool = False
    """Its templates take the arguments of earlier calls as JSON text, not as objects."""
    reasoning: tuple[ReasoningMarks, ...] = (THINK,)
    """Ways to mark reasoning, the most specific first."""
    has_channels: bool = False
    """Reasoning, calls and the answer are messages in channels (`harmony.py`)."""

    @property
    def begins(self) -> tuple[str, ...]:
        """The marks at which text ends and a call may begin."""
        headers = tuple(elements_of(header)[0] for header in self.headers)
        opening = (self.opening,) if self.opening else ()
        return tuple(dict.fromkeys((*self.json_marks, *opening, *headers, *(mark for mark, _ in self.python_marks))))

    @property
    def marks(self) -> frozenset[str]:
        """All that its reader looks for. An answer keeps the text of special tokens that are part of it."""
        parameters = () if self.parameters is None else (self.parameters.begin, self.parameters.end)
        python = (mark for pair in self.python_marks for mark in pair)
        quote = (self.quote,) if self.quote else ()
        return frozenset({*self.begins, *self.headers, *self.json_ends, *self.footers, *parameters, *python, *quote})

    @property
    def example(self) -> str:
        """A call, as it is explained to the model."""
        if self.explained:
            return self.explained
        parameters = ""
        if self.parameters is not None:
            begin, line = self.parameters.begin_of("KEY", is_text=True), self.parameters.line
            parameters = f"{begin}{line}VALUE{line}{self.parameters.end}\n"
        written = f"{self.written.opening}{self.written.call}{self.written.closing}"
        places = {"{name}": "NAME", "{number}": "0", "{arguments}": "{...}", "{parameters}": parameters}
        return _PLACES.sub(lambda found: places.get(found[0], found[0]), written)

    def is_of(self, template: str) -> bool:
        has_marks = any(all(mark in template for mark in group) for group in self.found_by)
        return has_marks and not any(mark in template for mark in self.without)

    def reasoning_in(self, template: str) -> ReasoningMarks | None:
        """How the answers of this template mark reasoning, if they do."""
        if self.has_channels:
            return CHANNELS
        return next((marks for marks in self.reasoning if marks.end in template), None)


def elements_of(header: str) -> tuple[str, ...]:
    """A header as its literal parts and its places, without blanks."""
    return tuple(part for part in _PLACES.split(header) if part)
