"""Reproducible synthetic tokens: a token is a hash of a seed and its position, and depends on nothing else.

    recipe   ├─ system prompt ─┼─ words of the user ─┼─ answer of turn 1 ─┼─ words ─┤
             seed, from, count   seed, from, count     …

Equal pieces give equal tokens, so requests share a prefix exactly where their recipes do; and an answer is known before
it is given, so the next turn can be written down beforehand.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quire.core.request import Tokens

Words = npt.NDArray[np.uint64]
TOKEN_BITS = 17
_STRIDE, _FACTOR = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
_HALF, _REST = np.uint64(32), np.uint64(64 - TOKEN_BITS)


def seed_of(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")


def scrambled(words: Words) -> Words:
    """A permutation of 64-bit words after which neighbours have nothing in common."""
    mixed = words ^ (words >> _HALF)
    mixed *= _FACTOR
    mixed ^= mixed >> _HALF
    mixed *= _FACTOR
    mixed ^= mixed >> _HALF
    return mixed


def mixed_tokens(seeds: Words, positions: npt.NDArray[np.int64]) -> Tokens:
    """The token of each seed at each position."""
    return np.asarray(scrambled(seeds + positions.astype(np.uint64) * _STRIDE) >> _REST, dtype=np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """A prompt before it is made: pieces, each `counts` tokens of a seed from a position on."""

    seeds: Words
    begins: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]

    @staticmethod
    def of(pieces: Iterable[tuple[int, int, int]]) -> Recipe:
        """From (seed, first position, tokens) each."""
        seeds, begins, counts = zip(*pieces, strict=True)
        return Recipe(np.array(seeds, np.uint64), np.array(begins, np.int64), np.array(counts, np.int64))

    @property
    def tokens(self) -> int:
        return int(self.counts.sum())

    def made(self) -> Tokens:
        """The prompt, in one go."""
        starts = np.cumsum(self.counts) - self.counts
        positions = np.arange(self.tokens) - np.repeat(starts - self.begins, self.counts)
        return mixed_tokens(np.repeat(self.seeds, self.counts), positions)
