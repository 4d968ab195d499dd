"""Rows whose request cannot continue: reported within a step, taken by the engine after it."""

from __future__ import annotations


class RowFailures:
    """A list that grammars add to and that the engine reads: it ends these requests and no others."""

    def __init__(self) -> None:
        self._found: list[tuple[int, str]] = []

    def report(self, row: int, why: str) -> None:
        self._found.append((row, why))

    def take(self) -> list[tuple[int, str]]:
        """What was reported since the last call."""
        found, self._found = self._found, []
        return found
