"""The port behind which pages live outside the device: who keeps prefixes and brings them back, and how that ends.

A load writes into staging memory that belongs to the tier. When it is done, the next step copies the bytes into the
request's pages, in order; until then no page depends on it, so a load that is late, lost or cancelled owns nothing.
A store goes the same way back: the next step copies pages into blocks of staging memory, before anything may write to
them, and from then on the tier has a copy of its own. No page waits for a tier.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Blocks = tuple[int, ...]
"""Blocks of staging memory, in order: together they hold one record (`quire.plan.records`)."""
SCOPE_BYTES = 8
"""Of each key, its first ones: whose prefix it is."""


def is_of(name: bytes, scope: bytes) -> bool:
    """Whether a record is of this scope: names are a letter and a key. An empty scope: everyone's."""
    return name.startswith(scope, 1)


@dataclass(frozen=True, slots=True)
class Load:
    """One transfer, from a tier to staging memory: the first `tokens` tokens of a request, as every kind needs them."""

    number: int
    """Given once, never again: a late answer for an old load is recognised by it."""
    request: str
    keys: tuple[bytes, ...]
    """Of the units that make up these tokens."""
    tokens: int
    end: bytes = b""
    """Key of the place between two units where they end; empty: they end with a unit."""
    held_tokens: int = 0
    """The row has these already, as far as kinds that grow are concerned: their whole pages are not brought again."""


Ends = Callable[[int], Sequence[bytes]]
"""Keys of the places 1, 2, … tokens behind so many units of a request: a turn may have ended there."""


class Found(NamedTuple):
    """How much of a request a tier can bring back so that every kind may go on behind it."""

    units: int
    behind: int = 0
    """Tokens behind the last of them."""


@dataclass(frozen=True, slots=True)
class Answer:
    """How a load ended. There may be none: every load has a deadline."""

    number: int
    is_done: bool
    reason: str = ""
    has_less: bool = False
    """It failed, and the tier may still be able to bring less than that: it can be asked again."""
    is_staged: bool = True
    """It is done, and the next step copies what was staged into the row's pages."""
    is_over: bool = True
    """False: that copy goes on beside the steps, and another answer tells when the bytes are in their pages."""


class Tier(Protocol):
    def find(self, keys: Sequence[bytes], ends: Ends) -> Found:
        """What it can bring back of these units, from the first on, and behind the last of them. A question."""
        ...

    def begin(self, load: Load) -> None: ...

    def cancel(self, number: int) -> None:
        """Nobody waits for this load any more, answered or not; an answer that still comes is ignored."""
        ...

    def answers(self) -> Sequence[Answer]:
        """What ended since the last call."""
        ...


@dataclass(frozen=True, slots=True)
class TierStatus:
    """Where a tier stands: what metrics show. Plain values that can travel."""

    name: str
    can_read: bool
    can_write: bool
    hits: int
    """Records that were read here."""
    misses: int
    """Records that were looked for here in vain."""
    bytes: Mapping[str, int]
    """By way: read, write."""
    transfers: Mapping[str, int]
    """By way: records that travelled, and in `seconds` how long all of them took together."""
    seconds: Mapping[str, float]
    in_flight: Mapping[str, int]
    failures: Mapping[str, int]
    """By what was tried."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record that was accepted is to be copied."""

    number: int
    blocks: Blocks


class Keeper(Protocol):
    """Who takes what the cache keeps, record by record."""

    def renew(self, names: Sequence[bytes]) -> list[int]:
        """These records were used now; returns the places of those that it lacks."""
        ...

    def accept(self, name: bytes, size_bytes: int) -> Place | None:
        """Makes room for a record. None: there is none, and nothing is kept."""
        ...

    def give_up(self, number: int) -> None:
        """The step that should have copied a record was abandoned: unless the copy is made after all, its room is free
        again."""
        ...

    def forget(self, scope: bytes) -> None:
        """From now on it brings back nothing of a scope (its `SCOPE_BYTES`; empty: of anyone) that it was given
        before."""
        ...

    def seconds_to_load(self, size_bytes: int) -> float | None:
        """What bringing back so many bytes takes, by what was measured; None: nothing was yet."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Store:
    """One record on its way out, in a step: pages to be copied into blocks of staging memory, in order."""

    place: Place
    pages: tuple[tuple[int, int, npt.NDArray[np.int64]], ...]
    """(stage, kind, pages)."""
    after: int
    """How many of the step's copies come before it."""


@dataclass(frozen=True, slots=True)
class Staged:
    """A load that is done: where its records lie."""

    load: Load
    units: tuple[Blocks, ...]
    """From the first unit that the row does not hold whole; empty where no kind grows."""
    boundary: Blocks
    """What the other kinds need there; empty where every kind grows."""


class Shelf(Protocol):
    """Whose memory it is that a runner copies from and to."""

    def stored(self, number: int) -> None:
        """A record is in its place."""
        ...

    def staged(self, number: int) -> Staged: ...

    def landed(self, number: int) -> None:
        """The bytes are in their pages: the staging memory may go."""
        ...

    def follow(self, wait: Callable[[], float], stored: Sequence[int] = (), landed: Sequence[int] = ()) -> None:
        """The same of several, when a copy beside the steps is done: `wait` returns then, and tells what it took."""
        ...
