"""Values that the prefix index takes and returns: places in it, hits, tokens of ended turns, results of evictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quire.core.reasons import Why
from quire.core.request import Tokens
from quire.prefix.nodes import NO_NODES, Chain


class Place(NamedTuple):
    """A node, and its key to check that the node still stands for the same prefix."""

    node: int
    key: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Hit:
    """A prefix of `tokens` tokens that can be adopted, along `chain`; 0 tokens: a miss, and why."""

    tokens: int
    chain: Chain
    """Nodes of whole units, then that of an end between units if the hit is there."""
    overlap: int = 0
    """Units that were computed before, whether or not a hit can end there."""
    miss: Why | None = None


def no_hit(miss: Why, overlap: int = 0) -> Hit:
    return Hit(0, NO_NODES, overlap, miss)


class Turn(NamedTuple):
    """The tokens of a request that leaves its row: whole units, and a rest that is shorter than one."""

    keys: Sequence[bytes]
    units: int
    root: bytes
    rest: Tokens
    came_from: Place | None
    """The boundary that it continued from: of little further use, unless other requests continued from there too."""
    known: Chain
    """The nodes of its units as of its last addition to the index."""
    line: int
    """Length of the sequence of hits that led to it."""


class Evicted(NamedTuple):
    """What one call evicted."""

    tokens: int = 0
    """At the ends of chains."""
    pieces: int = 0
    """Ends of chains, boundaries and groups of spares; 0: nothing."""
