"""The port behind which pages live outside the device: who can bring back a prefix, and how a load ends.

A load writes into staging memory that belongs to the tier. When it is done, the next step copies the bytes into the
request's pages, in order; until then no page depends on it, so a load that is late, lost or cancelled owns nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Load:
    """One transfer, from a tier to staging memory: the first `tokens` tokens of a request, as every kind needs them."""

    number: int
    """Given once, never again: a late answer for an old load is recognised by it."""
    request: str
    keys: tuple[bytes, ...]
    """Of the units that make up these tokens."""
    tokens: int


@dataclass(frozen=True, slots=True)
class Answer:
    """How a load ended. There may be none: every load has a deadline."""

    number: int
    is_done: bool
    reason: str = ""


class Tier(Protocol):
    def find(self, keys: Sequence[bytes]) -> int:
        """How many units from the first on it can bring back so that every kind may go on behind them. A question."""
        ...

    def begin(self, load: Load) -> None: ...

    def cancel(self, number: int) -> None:
        """Nobody waits for this load any more; an answer that still comes is ignored."""
        ...

    def answers(self) -> Sequence[Answer]:
        """What ended since the last call."""
        ...
