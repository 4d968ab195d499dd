"""Speculative decoding: the interface of drafters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from quire.core.request import Tokens
from quire.core.step import Ints


class Drafter(Protocol):
    """Proposes the next tokens of rows. A rejected draft token costs time and changes nothing else."""

    def enter(self, row: int, tokens: Tokens, scope: str) -> None:
        """The row belongs to another request now, which has these tokens. Drafts never come from another scope."""

    def extend(self, rows: Ints, tokens: Tokens) -> None:
        """The next token of each of these rows."""

    def propose(self, rows: Ints, counts: Ints, step_tokens: int) -> Mapping[int, Tokens]:
        """By place in `rows`, in order: at most as many draft tokens as `counts` says, for a step of `step_tokens`."""
