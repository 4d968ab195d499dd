"""Draft tokens by lookup: the last few tokens are looked up in prompt and outputs, the longest match first.

    … the cat sat on the mat, and the cat sat │ on the mat          n = 4, 3, 2 last tokens; the latest match counts
          └───────────┘ ▲             └───────┘

A match that overlaps the end is a loop and is repeated. Summaries, edits, code and tables repeat themselves; if nothing
repeats, nothing is drafted.
"""

from __future__ import annotations

import numpy as np

from quire.core.request import Tokens

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

    def enter(self, row: int, tokens: Tokens) -> None:
        self._tokens[row], self._followers[row] = [], {}
        self.extend(row, tokens[-MOST_TOKENS:])

    def extend(self, row: int, tokens: Tokens) -> None:
        own, followers = self._tokens[row], self._followers[row]
        begin = len(own)
        own += tokens.tolist()
        for end in range(max(begin, SHORTEST), len(own)):
            piece = tuple(own[max(0, end - LONGEST) : end])
            for skipped in range(len(piece) - SHORTEST + 1):
                followers[piece[skipped:]] = end

    def propose(self, row: int, count: int) -> Tokens:
        own, followers = self._tokens[row], self._followers[row]
        for size in range(min(LONGEST, len(own)), SHORTEST - 1, -1):
            place = followers.get(tuple(own[-size:]))
            if place is not None:
                found = own[place : place + count]
                rounds = -(-count // len(found))
                return np.array((found * rounds)[:count], dtype=np.int32)
        return np.empty(0, dtype=np.int32)
