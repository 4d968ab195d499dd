"""Which records are in host memory, and in which blocks: the least recently used one is evicted first.

A record is *private* while its bytes are being written, and *published* when they are complete. A pinned record stays:
a transfer reads or writes its blocks.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from quire.core.tier import Blocks, is_of


@dataclass(slots=True, eq=False)
class Record:
    """A record in host memory: its blocks, and how many transfers use them."""

    name: bytes
    size_bytes: int
    blocks: Blocks
    pins: int = 1
    is_published: bool = False
    is_forgotten: bool = False
    """Its scope was dropped while it was being written: it is never published."""


class HostCache:
    """Blocks of host memory, divided among records. Not thread-safe: its owner has the lock."""

    def __init__(self, blocks: int, block_bytes: int) -> None:
        self.blocks, self._block_bytes = blocks, block_bytes
        self._free = list(range(blocks - 1, -1, -1))
        self._records: OrderedDict[bytes, Record] = OrderedDict()
        """Published records, the least recently used first."""
        self.leased: Counter[bytes] = Counter()
        """Names of records that leases keep: they are not evicted."""
        self.evictions = 0

    def __contains__(self, name: bytes) -> bool:
        return name in self._records

    def __len__(self) -> int:
        return len(self._records)

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    def needed_blocks(self, size_bytes: int) -> int:
        return -(-size_bytes // self._block_bytes)

    def use(self, name: bytes) -> Record | None:
        """A published record, which becomes the most recently used."""
        if name in self._records:
            self._records.move_to_end(name)
        return self._records.get(name)

    def pin(self, names: Iterable[bytes]) -> list[Record]:
        """Pins the records that exist; the last of them becomes the most recently used."""
        found = [record for name in names if (record := self.use(name)) is not None]
        for record in found:
            record.pins += 1
        return found

    def reserve(self, name: bytes, size_bytes: int) -> Record | None:
        """A private, pinned record; others are evicted for it. None: too much is pinned or leased; nothing changed."""
        count = self.needed_blocks(size_bytes)
        victims: list[Record] = []
        found = len(self._free)
        for record in self._records.values():
            if found >= count:
                break
            if not record.pins and record.name not in self.leased:
                victims.append(record)
                found += len(record.blocks)
        if found < count:
            return None
        for record in victims:
            self._forget(record)
            self.evictions += 1
        return Record(name, size_bytes, tuple(self._free.pop() for _ in range(count)))

    def publish(self, record: Record) -> None:
        """Its bytes are complete. If it was dropped, or another one of this name came first, it stays private and is
        freed with its last pin."""
        if record.name not in self._records and not record.is_forgotten:
            record.is_published = True
            self._records[record.name] = record

    def unpin(self, record: Record) -> None:
        record.pins -= 1
        if not record.pins and not record.is_published:
            self._free += record.blocks

    @property
    def unpinned_blocks(self) -> int:
        """Blocks of published records that no transfer uses."""
        return sum(len(record.blocks) for record in self._records.values() if not record.pins)

    def forget(self, scope: bytes = b"") -> None:
        """Drops the records of a scope, or all of them; a pinned one is freed with its last pin."""
        for record in [record for record in self._records.values() if is_of(record.name, scope)]:
            if record.pins:
                del self._records[record.name]
                record.is_published = False
            else:
                self._forget(record)

    def _forget(self, record: Record) -> None:
        del self._records[record.name]
        record.is_published = False
        self._free += record.blocks
