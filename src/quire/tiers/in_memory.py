"""The reference tier: the ports of a tier in memory, for one thread, without bytes. Simulator, checker, tests use it.

    begin ──▶ Transfer: an answer, and when it is due ──answers()──▶ that answer

A variation overrides `transfer`, which says how and when a load ends, and `end`, which is called when it does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from quire.core.tier import Answer, Ends, Found, Load, Place, TransferDone, TransferIncomplete, is_of
from quire.plan.records import Records
from quire.tiers.host_cache import HostCache, Record
from quire.tiers.host_leases import HostLeases

NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Transfer:
    """A load in progress."""

    load: Load
    answer: Answer
    begun: float
    due: float
    records: tuple[Record, ...] = ()
    """Pinned until it ends, or until a step has copied them."""
    is_awaited: bool = True
    """False: it was cancelled. It is answered all the same."""


class InMemoryTier:
    """A `Tier` that has the first `units` units of every prompt, and those that it knows by key."""

    def __init__(self, clock: Callable[[], float], units: int = 0, seconds: float = 0.0) -> None:
        """`seconds`: duration of a load; `NEVER`: it ends with `answer`."""
        self.clock, self.units, self.seconds = clock, units, seconds
        self.known: set[bytes] = set()
        self.transfers: dict[int, Transfer] = {}

    def find(self, keys: Sequence[bytes], ends: Ends) -> Found:
        del ends
        is_there = (place < self.units or key in self.known for place, key in enumerate(keys))
        return Found(sum(takewhile(bool, is_there)))

    def begin(self, load: Load) -> None:
        self.transfers[load.number] = self.transfer(load)

    def transfer(self, load: Load) -> Transfer:
        """How and when a load ends: it is done."""
        now = self.clock()
        return Transfer(load, TransferDone(load.number), now, now + self.seconds)

    def cancel(self, number: int) -> None:
        if number in self.transfers:
            self.transfers[number] = replace(self.transfers[number], is_awaited=False)

    def answer(self, answer: Answer) -> None:
        """Ends a load now, after those that have ended before."""
        transfer = self.transfers.pop(answer.number)
        self.transfers[answer.number] = replace(transfer, answer=answer, due=self.clock())

    def answers(self) -> Sequence[Answer]:
        due = [transfer for transfer in self.transfers.values() if transfer.due <= self.clock()]
        for transfer in due:
            del self.transfers[transfer.load.number]
        return [self.end(transfer) for transfer in due]

    def end(self, transfer: Transfer) -> Answer:
        return transfer.answer


class InMemoryStore(InMemoryTier):
    """A tier that keeps what steps store: names of records in blocks of host memory, without their bytes."""

    def __init__(self, records: Records, blocks: int, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self.records, self.cache = records, HostCache(blocks, records.block_bytes)
        self.staged: dict[int, Transfer] = {}
        """Loads that are done, until a step has copied them."""
        self.coming: dict[int, Record] = {}
        """Records that a step will copy, by the number of their place."""
        self._numbers = 0
        self.leases = HostLeases(self.cache, self.coming.values)
        self.lease, self.end_lease, self.is_stored = self.leases.lease, self.leases.end_lease, self.leases.is_stored

    def lease_bytes_left(self) -> int:
        return (self.leases.most_blocks() - self.leases.blocks()) * self.records.block_bytes

    def seconds_to_load(self, size_bytes: int) -> float | None:
        """Not measured."""
        del size_bytes
        return None

    def find(self, keys: Sequence[bytes], ends: Ends) -> Found:
        return self.records.greatest(keys, ends, lambda names: [name in self.cache for name in names])

    def transfer(self, load: Load) -> Transfer:
        wanted = self.records.wanted(load)
        found = self.cache.pin(name for name, _ in wanted)  # a stack marks them as used in the other order
        transfer = replace(super().transfer(load), records=tuple(found))
        if len(found) == len(wanted):
            return transfer
        return replace(transfer, answer=TransferIncomplete(load.number, "a record is gone"))

    def cancel(self, number: int) -> None:
        """A transfer in progress keeps its blocks until it ends."""
        super().cancel(number)
        if number in self.staged:
            self.note_landed(number)

    def end(self, transfer: Transfer) -> Answer:
        if transfer.is_awaited and isinstance(transfer.answer, TransferDone):
            self.staged[transfer.load.number] = transfer
        else:
            self._release(transfer)
        return super().end(transfer)

    def note_landed(self, number: int) -> None:
        self._release(self.staged.pop(number))

    def _release(self, transfer: Transfer) -> None:
        for record in transfer.records:
            self.cache.unpin(record)

    # ── stores ────────────────────────────────────────────────────────────

    def renew(self, names: Sequence[bytes]) -> list[int]:
        for name in reversed(names):
            self.cache.use(name)
        coming = {record.name for record in self.coming.values() if not record.is_forgotten}
        return [place for place, name in enumerate(names) if name not in self.cache and name not in coming]

    def accept(self, name: bytes, size_bytes: int) -> Place | None:
        record = self.cache.reserve(name, size_bytes)
        if record is None:
            return None
        self._numbers += 1
        self.coming[self._numbers] = record
        return Place(self._numbers, record.blocks)

    def note_stored(self, number: int) -> None:
        record = self.coming.pop(number)
        self.cache.publish(record)
        self.cache.unpin(record)

    def give_up(self, number: int) -> None:
        record = self.coming.pop(number, None)
        if record is not None:
            self.cache.unpin(record)

    def forget(self, scope: bytes) -> None:
        self.cache.forget(scope)
        for record in self.coming.values():
            record.is_forgotten = record.is_forgotten or is_of(record.name, scope)
