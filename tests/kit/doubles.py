"""Stand-ins for what lies outside an engine under test."""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.connector import Layout
from quire.tiers.in_memory import NEVER, InMemoryTier


def silent_tier(units: int) -> InMemoryTier:
    """Has the first units of everything; a load ends when the test answers it, or never."""
    return InMemoryTier(lambda: 0.0, units, NEVER)


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
