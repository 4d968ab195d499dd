"""Speculative decoding: the interface of drafters."""

from __future__ import annotations

from typing import Protocol

from quire.core.request import Tokens


class Drafter(Protocol):
    """Proposes the next tokens of each row. A rejected draft token costs time and changes nothing else."""

    def enter(self, row: int, tokens: Tokens) -> None:
        """The row belongs to another request now, which has these tokens."""
        ...

    def extend(self, row: int, tokens: Tokens) -> None:
        """The row's tokens since the last call."""
        ...

    def propose(self, row: int, count: int) -> Tokens:
        """At most `count` draft tokens; none if the drafter has no proposal."""
        ...
