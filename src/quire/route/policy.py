"""The question that a router answers: which replica gets this request?

    request ─▶ Policy.choose ──asks──▶ replicas        each answers with a Room: what it would reuse, what is ahead of it
                    │
                    └─▶ the place of a replica

A policy does no I/O and reads no clock: it is given the time, and a function that asks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from quire.explain.room import Room


@dataclass(frozen=True, slots=True)
class Asker:
    """The replicas that a request may go to."""

    replicas: int
    rooms: Callable[[], Sequence[Room]]
    """Asks each replica what would happen to the request there."""


class Policy(Protocol):
    def choose(self, session: str, now: float, replicas: Asker) -> int:
        """The replica for a request of this session, at this time in seconds."""
        ...
