"""Requests that wait for a row and pages: a bounded queue, in the order of their claims."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from quire.core.errors import QueueFull
from quire.core.request import Request


def _nothing() -> npt.NDArray[np.int32]:
    return np.empty(0, dtype=np.int32)


@dataclass(slots=True, eq=False)
class Waiting:
    """A request, when it came, and what it had yielded before it was preempted."""

    request: Request
    arrival: int
    outputs: npt.NDArray[np.int32] = field(default_factory=_nothing)
    preemptions: int = 0
    root: bytes = b""
    keys: list[bytes] = field(default_factory=list)
    """Of the whole units of its tokens, as far as they are known."""
    came_from: bytes = b""
    """The end of a turn that it goes on from, if it found one."""
    hit_tokens: int = 0
    miss: str = ""
    reason: str = "just came"

    @property
    def claim(self) -> tuple[int, int]:
        return (-self.request.priority, self.arrival)


class Queue:
    def __init__(self, bound: int) -> None:
        self.bound = bound
        self._by_claim: list[Waiting] = []
        self._by_arrival: list[Waiting] = []

    def __len__(self) -> int:
        return len(self._by_claim)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._by_claim)

    def add(self, waiting: Waiting, returning: bool = False) -> None:
        """A preempted request returns whatever the bound: it was accepted before."""
        if not returning and len(self) >= self.bound:
            raise QueueFull(f"{len(self):,} requests wait already: come back later or raise the queue's bound")
        bisect.insort(self._by_claim, waiting, key=lambda one: one.claim)
        bisect.insort(self._by_arrival, waiting, key=lambda one: one.arrival)

    def remove(self, waiting: Waiting) -> None:
        self._by_claim.remove(waiting)
        self._by_arrival.remove(waiting)

    def elder(self) -> Waiting | None:
        return self._by_arrival[0] if self._by_arrival else None

    def head(self) -> Waiting | None:
        return self._by_claim[0] if self._by_claim else None

    def find(self, name: str) -> Waiting | None:
        return next((one for one in self._by_claim if one.request.name == name), None)
