"""The ports of a tier: storage outside the device that keeps prefixes of the KV cache and loads them again.

    Tier            finds prefixes and loads them into staging memory
    RecordStore     accepts records of prefixes that the cache keeps
    StagingMemory   blocks of host memory that the runner copies from and to

A load writes into staging memory that belongs to the tier. When it is done, the next step copies the bytes into the
request's pages, in order. Until then no page depends on it: a load that is late, lost or cancelled owns no page.
A store goes the other way: the next step copies pages into staging memory before anything may write to them. From then
on the tier has a copy of its own. No page waits for a tier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Blocks = tuple[int, ...]
"""Blocks of staging memory, in order: together they hold one record (`quire.plan.records`)."""
SCOPE_BYTES = 8
"""The first bytes of each key: the scope of its prefix."""


def is_of(name: bytes, scope: bytes) -> bool:
    """Whether a record belongs to this scope: a name is a letter and a key. Every record belongs to the empty scope."""
    return name.startswith(scope, 1)


@dataclass(frozen=True, slots=True)
class Load:
    """One transfer from a tier to staging memory: what every kind needs of a request's first `tokens` tokens."""

    number: int
    """Never reused, so that a late answer to an old load is recognised."""
    request: str
    keys: tuple[bytes, ...]
    """Keys of the units that make up these tokens."""
    tokens: int
    end: bytes = b""
    """Key of the place between two units where they end; empty: they end with a unit."""
    held_tokens: int = 0
    """Tokens that the row holds already of kinds that grow: their whole pages are not loaded again."""


Ends = Callable[[int], Sequence[bytes]]
"""For a number of units of a request: the keys of the places 1, 2, … tokens after them, where a turn may have ended."""


class Found(NamedTuple):
    """The longest prefix of a request that a tier can load and after which every kind can continue."""

    units: int
    behind: int = 0
    """Tokens of the prefix after its last whole unit."""


@dataclass(frozen=True, slots=True)
class TransferDone:
    """The bytes are in staging memory. The next step copies them into the row's pages before the row computes."""

    number: int


@dataclass(frozen=True, slots=True)
class TransferStaged:
    """The bytes are in staging memory. The next step starts a copy that runs alongside the steps, and `TransferLanded`
    follows when it is done."""

    number: int


@dataclass(frozen=True, slots=True)
class TransferLanded:
    """The bytes are in the row's pages: the copy alongside the steps is done."""

    number: int


@dataclass(frozen=True, slots=True)
class TransferFailed:
    """The tier cannot load this prefix."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class TransferIncomplete:
    """The tier cannot load all of this prefix. It may be able to load a shorter one."""

    number: int
    reason: str


Answer = TransferDone | TransferStaged | TransferLanded | TransferFailed | TransferIncomplete
"""What a tier reports about a load. A tier may never answer: every load has a deadline."""


class Tier(Protocol):
    """Finds and loads prefixes. `begin` requests a load; the engine collects `answers` before each step."""

    def find(self, keys: Sequence[bytes], ends: Ends) -> Found:
        """The longest prefix of these units, and of the tokens after them, that it can load. Changes nothing."""

    def begin(self, load: Load) -> None:
        """Starts a load."""

    def cancel(self, number: int) -> None:
        """Cancels a load, answered or not. An answer that arrives later is ignored."""

    def answers(self) -> Sequence[Answer]:
        """What happened to loads since the last call."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the next step is to copy a record that was accepted."""

    number: int
    blocks: Blocks


class RecordStore(Protocol):
    """Accepts what the cache keeps, record by record."""

    def renew(self, names: Sequence[bytes]) -> list[int]:
        """Marks records as just used, and returns the positions of those that it lacks."""

    def accept(self, name: bytes, size_bytes: int) -> Place | None:
        """Makes room for a record. None: there is no room, and the record is not stored."""

    def give_up(self, number: int) -> None:
        """The step that should have copied a record was abandoned. Its room is freed, unless it is copied after all."""

    def forget(self, scope: bytes) -> None:
        """Drops the records of a scope (its `SCOPE_BYTES`; empty: of every scope), and never loads them again."""

    def seconds_to_load(self, size_bytes: int) -> float | None:
        """Measured duration of a load of this size; None: nothing was measured yet."""


@dataclass(frozen=True, slots=True, eq=False)
class Store:
    """One record that a step stores: pages to be copied into blocks of staging memory, in order."""

    place: Place
    pages: tuple[tuple[int, int, npt.NDArray[np.int64]], ...]
    """(stage, kind, pages)."""
    after: int
    """How many of the step's copies are done before it."""


@dataclass(frozen=True, slots=True)
class Staged:
    """Where the records of a load are in staging memory."""

    load: Load
    records: tuple[Blocks, ...]
    """In the order of `quire.plan.records.Records.wanted`."""


class StagingMemory(Protocol):
    """Blocks of host memory that the runner copies from and to: it reports what it has copied."""

    def note_stored(self, number: int) -> None:
        """A record has been copied to its place."""

    def staged_load(self, number: int) -> Staged:
        """Where the records of a completed load are: the runner copies them now."""

    def note_landed(self, number: int) -> None:
        """A load has been copied into its pages: its staging memory may be reused."""

    def follow(self, wait: Callable[[], float], stored: Sequence[int] = (), landed: Sequence[int] = ()) -> None:
        """Notes all of these when a copy alongside the steps is done: `wait` returns then, with its seconds."""
