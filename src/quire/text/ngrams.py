"""Draft tokens by lookup: the last few tokens are looked up in prompt and outputs, the longest match first.

    … the cat sat on the mat, and the cat sat │ on the mat          n = 4, 3, 2 last tokens; the latest match counts
          └───────────┘ ▲             └───────┘

A match that overlaps the end is a loop and is repeated. Summaries, edits, code and tables repeat themselves; if nothing
repeats, nothing is drafted.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from quire.core.request import Tokens
from quire.core.step import Ints

LONGEST, SHORTEST = 4, 2
"""How many tokens must match."""
MOST_TOKENS = 16_384
"""How many of a row's first tokens are indexed, counted from their end: bounds time and memory of long prompts."""


class NGramDrafter:
    def __init__(self) -> None:
        self._tokens: dict[int, list[int]] = {}
        """By row."""
        self._followers: dict[int, dict[tuple[int, ...], int]] = {}
        """By row: where the latest occurrence of each n-gram ends, except the one at the row's end."""

    def enter(self, row: int, tokens: Tokens, scope: str) -> None:
        del scope  # each row looks up its own tokens alone
        self._tokens[row], self._followers[row] = [], {}
        self._extend(row, tokens[-MOST_TOKENS:].tolist())

    def extend(self, rows: Ints, tokens: Tokens) -> None:
        for row, token in zip(rows.tolist(), tokens.tolist(), strict=True):
            self._extend(row, [token])

    def propose(self, rows: Ints, counts: Ints, step_tokens: int) -> Mapping[int, Tokens]:
        del step_tokens
        pairs = enumerate(zip(rows.tolist(), counts.tolist(), strict=True))
        found = {place: self._look_up(row, count) for place, (row, count) in pairs}
        return {place: np.array(tokens, dtype=np.int32) for place, tokens in found.items() if tokens}

    def _extend(self, row: int, tokens: list[int]) -> None:
        own, followers = self._tokens[row], self._followers[row]
        begin = len(own)
        own += tokens
        for end in range(max(begin, SHORTEST), len(own)):
            piece = tuple(own[max(0, end - LONGEST) : end])
            for skipped in range(len(piece) - SHORTEST + 1):
                followers[piece[skipped:]] = end

    def _look_up(self, row: int, count: int) -> list[int]:
        own, followers = self._tokens[row], self._followers[row]
        for size in range(min(LONGEST, len(own)), SHORTEST - 1, -1):
            place = followers.get(tuple(own[-size:]))
            if place is not None:
                found = own[place : place + count]
                rounds = -(-count // len(found))
                return (found * rounds)[:count]
        return []
