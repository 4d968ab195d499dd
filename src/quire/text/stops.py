"""Stop strings over streamed text.

What could be the beginning of a stop string is held back until it is one or cannot be one:

    stop "END"      in  "the E"  →  out "the "        "E" waits
                    in  "ast"    →  out "East"
                    in  " EN"    →  out " "           "EN" waits
                    in  "D."     →  out ""            found: the text ends before "END"
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Passed:
    """Text that may be shown, and the stop string that ended it."""

    text: str
    stop: str | None = None


class StopStrings:
    """The first stop string to be complete counts; of several that end together, the longest."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None
        """The stop string that ended the text; what comes after it is not shown."""

    def feed(self, text: str) -> Passed:
        if self.found:
            return Passed("", self.found)
        text = self._held + text
        ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in self._stops if stop in text]
        if ends:
            end, _, self.found = min(ends)
            return Passed(self._let(text, end - len(self.found)), self.found)
        return Passed(self._let(text, len(text) - max((_overlap(text, stop) for stop in self._stops), default=0)))

    def finish(self) -> str:
        """What is still held back: no stop string will come of it."""
        return "" if self.found else self._let(self._held, len(self._held))

    def _let(self, text: str, length: int) -> str:
        self._held = text[length:]
        return text[:length]


def _overlap(text: str, stop: str) -> int:
    """The longest end of the text that is a beginning of the stop string, and not all of it."""
    lengths = range(min(len(text), len(stop) - 1), 0, -1)
    return next((length for length in lengths if text.endswith(stop[:length])), 0)
