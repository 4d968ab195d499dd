"""The replicas that the gateway knows, and the calls that it has given to each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Replica:
    name: str
    address: str
    """`http://HOST:PORT`, where `quire serve` listens."""


class Members:
    def __init__(self) -> None:
        self._known: tuple[Replica, ...] = ()
        self._lost: set[Replica] = set()
        self.calls: Counter[str] = Counter()
        """In progress, by the name of the replica."""

    def replace(self, replicas: Sequence[Replica]) -> None:
        """Those that run now: one that was lost has another chance."""
        self._known = tuple(sorted(replicas, key=lambda one: one.name))
        self._lost.clear()

    def lose(self, replica: Replica) -> None:
        """It takes no connections: it gets no calls until it is reported again."""
        self._lost.add(replica)

    def least_busy(self) -> list[Replica]:
        """Those that take calls, the one with the fewest calls first."""
        here = [one for one in self._known if one not in self._lost]
        return sorted(here, key=lambda one: self.calls[one.name])

    @contextmanager
    def calling(self, replica: Replica) -> Iterator[None]:
        self.calls[replica.name] += 1
        try:
            yield
        finally:
            self.calls[replica.name] -= 1
            self.calls += Counter()  # drops those at 0
