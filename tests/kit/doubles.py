"""Stand-ins for what lies outside an engine under test."""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.connector import Layout
from quire.core.tier import Answer, Ends, Found, Load


class ScriptedTier:
    """Offers the first `units` units of everything; a load ends when the test says so, or never."""

    def __init__(self, units: dict[str, int] | int) -> None:
        self.units = units
        self.begun: list[Load] = []
        self.cancelled: list[int] = []
        self._answers: list[Answer] = []
        self.names_by_key: dict[bytes, str] = {}

    def find(self, keys: Sequence[bytes], ends: Ends) -> Found:
        del ends
        if isinstance(self.units, int):
            return Found(min(self.units, len(keys)))
        return Found(min(self.units.get(self.names_by_key.get(keys[0], ""), 0), len(keys)) if keys else 0)

    def begin(self, load: Load) -> None:
        self.begun.append(load)

    def cancel(self, number: int) -> None:
        self.cancelled.append(number)

    def answer(self, number: int, is_done: bool = True, reason: str = "") -> None:
        self._answers.append(Answer(number, is_done, reason))

    def answers(self) -> Sequence[Answer]:
        answers, self._answers = self._answers, []
        return answers


class Sieve:
    """A connector that keeps nothing of what it is given."""

    name = "sieve"

    def register(self, layout: Layout) -> None: ...

    def has(self, names: Sequence[bytes]) -> list[bool]:
        return [False] * len(names)

    def write(self, name: bytes, parts: Sequence[memoryview]) -> None: ...

    def read(self, name: bytes, parts: Sequence[memoryview]) -> bool:
        del name, parts
        return False

    def drop(self, name: bytes) -> None: ...

    def close(self) -> None: ...
