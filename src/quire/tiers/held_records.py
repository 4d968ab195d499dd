"""Records in host memory that several threads use: one lock, pins that keep a record in its blocks, and its bytes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from quire.tiers.host_cache import HostCache, Record


class BlockMemory(Protocol):
    """Host memory in blocks of equal size."""

    @property
    def blocks(self) -> int: ...

    def parts(self, blocks: Sequence[int], size_bytes: int) -> list[memoryview]: ...


class HeldRecords:
    """Owns the records of host memory. Loads, stores and hand-over pin what they use."""

    def __init__(self, memory: BlockMemory, block_bytes: int) -> None:
        self.lock = threading.Lock()
        """Guards the cache and the counters; never held while a connector is called."""
        self.cache = HostCache(memory.blocks, block_bytes)
        self.counters: Counter[str] = Counter()
        """Records, for metrics: stored, host_full (not stored), not_written_behind, host_hits, host_misses,
        load_without_room, loads, failed_loads."""
        self._memory = memory

    def parts(self, record: Record) -> list[memoryview]:
        return self._memory.parts(record.blocks, record.size_bytes)

    def hold(self, names: Sequence[bytes]) -> list[Record] | None:
        """Pins records for another engine; None: not all of them exist, and nothing changed."""
        with self.lock:
            if any(name not in self.cache for name in names):
                return None
            return self.pin(names)[::-1]

    def let_go(self, records: Sequence[Record]) -> None:
        with self.lock:
            self.unpin(records)

    # ── with the lock ─────────────────────────────────────────────────────

    def pin(self, names: Sequence[bytes]) -> list[Record]:
        """Pins the records that exist, the last one first, so that the beginning of a prefix is evicted last."""
        here = self.cache.pin(reversed(names))
        self.counters["host_hits"] += len(here)
        return here

    def reserve(self, wanted: Sequence[tuple[bytes, int]]) -> list[Record] | None:
        """Room for all of these names and sizes, or None."""
        taken: list[Record] = []
        for name, size in wanted:
            record = self.cache.reserve(name, size)
            if record is None:
                self.unpin(taken)
                return None
            taken.append(record)
        return taken

    def unpin(self, records: Sequence[Record]) -> None:
        for record in records:
            self.cache.unpin(record)
