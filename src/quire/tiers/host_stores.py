"""Stores of a stack: a step copies records into host memory, and threads write them to the tiers below.

accept ──▶ room is reserved ──step copies──▶ stored: it can be found, and goes to the tiers below
                            └─abandoned───▶ given up: its room is free again
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quire.core.tier import Place, is_of
from quire.tiers.costs import Totals
from quire.tiers.held_records import HeldRecords
from quire.tiers.host_cache import Record
from quire.tiers.lower_tier import LowerTier


@dataclass(slots=True, eq=False)
class OpenStore:
    """A record that a step will copy into its blocks."""

    record: Record
    promised: list[bool]
    """By tier below: whether it stays pinned until it is written there."""
    accepted_at: float
    is_copied: bool = False
    """A copy alongside the steps is in progress."""


class HostStores:
    """Accepts records into host memory, and passes them to the tiers below."""

    def __init__(
        self,
        held: HeldRecords,
        below: Sequence[LowerTier],
        clock: Callable[[], float],
        wake: Callable[[], None] | None = None,
    ) -> None:
        """`wake`: called when a record can be found, from the thread that copied it."""
        self.totals = Totals()
        self._held, self._below, self._clock, self._wake = held, below, clock, wake
        self._open: dict[int, OpenStore] = {}
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._open)

    def renew(self, names: Sequence[bytes]) -> list[int]:
        """Marks records as used from the last to the first: without its first record no prefix is of use."""
        cache = self._held.cache
        with self._held.lock:
            for name in reversed(names):
                cache.use(name)
            coming = {one.record.name for one in self._open.values() if not one.record.is_forgotten}
            return [place for place, name in enumerate(names) if name not in cache and name not in coming]

    def coming(self) -> list[Record]:
        """With the lock: records that a step will copy, or a copy alongside the steps."""
        return [one.record for one in self._open.values()]

    def accept(self, name: bytes, size_bytes: int) -> Place | None:
        with self._held.lock:
            record = self._held.cache.reserve(name, size_bytes)
            if record is None:
                self._held.counters["host_full"] += 1
                return None
            self._numbers += 1
            promised = [below.promise(record) for below in self._below]
            self._open[self._numbers] = OpenStore(record, promised, self._clock())
            return Place(self._numbers, record.blocks)

    def follow(self, numbers: Sequence[int]) -> None:
        """With the lock: these are copied alongside the steps, and stored even if their step is abandoned."""
        for number in numbers:
            self._open[number].is_copied = True

    def note_stored(self, number: int) -> None:
        for below in self._below:
            below.turn()
        with self._held.lock:
            one = self._open.pop(number)
            self._held.cache.publish(one.record)
            if self._wake is not None:
                self._wake()
            self._held.counters["stored"] += 1
            self.totals.note(one.record.size_bytes, self._clock() - one.accepted_at)
            for below, is_promised in zip(self._below, one.promised, strict=True):
                below.add(one.record, is_promised)
            self._held.cache.unpin(one.record)

    def give_up(self, number: int) -> None:
        with self._held.lock:
            if number not in self._open or self._open[number].is_copied:
                return
            one = self._open.pop(number)
            for below, is_promised in zip(self._below, one.promised, strict=True):
                below.withdraw(one.record, is_promised)
            self._held.cache.unpin(one.record)

    def forget(self, scope: bytes) -> None:
        """With the lock: records that are being stored are not published; the tiers below drop theirs, and load none of
        them until then."""
        for one in self._open.values():
            one.record.is_forgotten = one.record.is_forgotten or is_of(one.record.name, scope)
        for below in self._below:
            below.forget(scope)
