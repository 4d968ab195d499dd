"""Guesses by what followed before: the last few tokens are looked up in prompt and outputs, the longest match first.

    … the cat sat on the mat, and the cat sat │ on the mat          n = 4, 3, 2 last tokens; the latest match counts
          └───────────┘ ▲             └───────┘

A match that overlaps the end is a loop: it is taken round and round. Summaries, edits, code and tables repeat
themselves; where nothing does, nothing is guessed.
"""

from __future__ import annotations

import numpy as np

from quire.core.request import Tokens

LONGEST, SHORTEST = 4, 2
"""Tokens that must match."""
MOST_TOKENS = 16_384
"""Of what a row begins with, looked at from its end: bounds time and memory of long prompts."""


class NGramDrafter:
    def __init__(self) -> None:
        self._tokens: dict[int, list[int]] = {}
        """By row."""
        self._followers: dict[int, dict[tuple[int, ...], int]] = {}
        """By row: where the latest occurrence of each few tokens ends, the row's own end apart."""

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
