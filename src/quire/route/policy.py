"""The question that a router answers: which replica gets this request?

    Arrival ─▶ Policy.choose ──asks──▶ replicas      each answers with a Room: what it would reuse, what is ahead of it
                    │
                    └─▶ the place of a replica

A policy does no I/O and reads no clock: an arrival has its time, and a function that asks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from quire.explain.room import Room


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that is to go to one of several replicas."""

    session: str
    """Equal for the requests of a conversation; empty: not known."""
    seconds: float
    """When it came, on any clock that does not jump."""
    replicas: int
    rooms: Callable[[], Sequence[Room]]
    """Asks each replica what would happen to the request there."""


class Policy(Protocol):
    def choose(self, arrival: Arrival) -> int:
        """The place of the replica that gets it."""
        ...
