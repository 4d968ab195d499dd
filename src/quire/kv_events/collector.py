"""Collects what happens to the prefix index between two steps, as blocks of tokens.

    index ──added, removed──▶ Collector ──take──▶ [BlocksStored, BlocksRemoved, …]     in the order in which it happened

A block is a unit of reuse. Its hash is 63 bits of its key, so it names all tokens from the first one on, and the scope.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from quire.core.request import Tokens
from quire.core.tier import SCOPE_BYTES
from quire.engine.engine import Engine

HASH_BITS = 63
"""Readers take hashes as signed or as unsigned 64-bit integers: with 63 bits they agree."""


@dataclass(frozen=True, slots=True, eq=False)
class BlocksStored:
    """Blocks that follow one another are there now."""

    hashes: tuple[int, ...]
    parent: int | None
    """Of the block before them; None: they begin a prompt."""
    tokens: Tokens
    block_tokens: int
    salt: str = ""
    """What all blocks of a scope have in common; empty: they are everyone's."""


@dataclass(frozen=True, slots=True)
class BlocksRemoved:
    hashes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AllCleared:
    """Nothing is there; or what is there cannot be known any more."""


BlockEvent: TypeAlias = BlocksStored | BlocksRemoved | AllCleared


class Collector:
    """A follower of an engine's index. It begins with `AllCleared`: what readers know is of another engine."""

    def __init__(self, engine: Engine) -> None:
        self._scheduler = engine.scheduler
        self._index = engine.scheduler.reuse.index
        self._events: list[BlockEvent] = [AllCleared()]
        self._index.follower = self

    def added(self, row: int, keys: Sequence[bytes], begin: int, end: int) -> None:
        rows, unit = self._scheduler.rows, self._index.unit
        tokens = rows.tokens(row, begin * unit, end * unit).copy()
        parent = hash_of(keys[begin - 1]) if begin else None
        salt = keys[begin][:SCOPE_BYTES].hex() if rows.requests[row].scope else ""
        hashes = tuple(map(hash_of, keys[begin:end]))
        self._events.append(BlocksStored(hashes, parent, tokens, unit, salt))

    def removed(self, keys: Sequence[bytes]) -> None:
        self._events.append(BlocksRemoved(tuple(map(hash_of, keys))))

    def take(self) -> list[BlockEvent]:
        """What has happened since the last call."""
        events, self._events = self._events, []
        return events


def hash_of(key: bytes) -> int:
    """Of the part of a key that differs between the prefixes of a scope."""
    return int.from_bytes(key[SCOPE_BYTES : SCOPE_BYTES + 8], "big") >> (64 - HASH_BITS)
