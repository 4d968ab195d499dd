"""Host memory, then disk, then remote: one tier to the scheduler, whatever tiers are below it.

    store    step ──▶ blocks of host memory ──thread──▶ disk, remote (written later, unless too much waits)
    load     blocks ◀──thread── disk, else remote          and the next step copies from the blocks

Host memory is staging memory and a tier: records read from other tiers stay there until their blocks are needed.
Every decision is made in the engine's thread; threads of the stack only move bytes and report.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from quire.core.connector import Connector, Layout
from quire.plan.records import Records
from quire.tiers.costs import host_status
from quire.tiers.guarded import GuardedTier
from quire.tiers.held_records import BlockMemory, HeldRecords
from quire.tiers.host_leases import HostLeases
from quire.tiers.host_loads import HostLoads
from quire.tiers.host_stores import HostStores
from quire.tiers.lower_tier import LowerTier
from quire.tiers.status import TierStatus
from quire.tiers.threads import MakeThreads, Threads, close_all

BEHIND_SHARE = 0.5
"""Largest fraction of host memory for records that wait to be written to tiers below, in equal parts for each: a slow
one must not fill it."""


class Stack:
    """`Tier`, `RecordStore` and `StagingMemory` of an engine: `held` has the records in host memory, `loads` and
    `stores` move them and implement the ports."""

    def __init__(
        self,
        records: Records,
        memory: BlockMemory,
        connectors: Sequence[Connector],
        layout: Layout,
        clock: Callable[[], float] = time.monotonic,
        *,
        lands_later: bool = False,
        threads: MakeThreads = Threads,
        wake: Callable[[], None] | None = None,
    ) -> None:
        """`lands_later`: copies into pages run alongside the steps, and a load is over when they are done. `threads`:
        the checker has its own, which it resumes one at a time. `wake`: called when a record can be found, from the
        thread that copied it."""
        self.tiers = [GuardedTier(connector, layout, clock) for connector in connectors]
        self.unit_tokens = records.unit_tokens
        self.held = HeldRecords(memory, records.block_bytes)
        share = BEHIND_SHARE * memory.blocks / max(1, sum(not tier.brings_only for tier in self.tiers))
        self.below = [LowerTier(tier, self.held, share, clock, threads) for tier in self.tiers]
        self.loads = HostLoads(records, self.held, self.below, clock, lands_later=lands_later, threads=threads)
        self.stores = HostStores(self.held, self.below, clock, wake)
        self._out, self._back = threads(1, "quire-out"), threads(1, "quire-back")
        """Wait for copies alongside the steps, which are done in order in each direction."""
        self.counters, loads, stores = self.held.counters, self.loads, self.stores
        self.find, self.begin, self.cancel, self.answers = loads.find, loads.begin, loads.cancel, loads.answers
        self.renew, self.accept, self.give_up = stores.renew, stores.accept, stores.give_up
        self.seconds_to_load = loads.seconds_to_load
        self._leases = HostLeases(self.held.cache, stores.coming)
        self._block_bytes = records.block_bytes
        self.note_stored, self.staged_load, self.note_landed = stores.note_stored, loads.staged_load, loads.note_landed
        for tier in self.tiers:
            tier.mend()

    def forget(self, scope: bytes) -> None:
        with self.held.lock:
            self.held.cache.forget(scope)
            self.loads.forget(scope)
            self.stores.forget(scope)

    # ── leases ────────────────────────────────────────────────────────────

    def lease(self, name: str, records: Sequence[bytes]) -> bool:
        with self.held.lock:
            return self._leases.lease(name, records)

    def end_lease(self, name: str) -> None:
        with self.held.lock:
            self._leases.end_lease(name)

    def is_stored(self, name: str) -> bool:
        with self.held.lock:
            return self._leases.is_stored(name)

    def lease_bytes_left(self) -> int:
        with self.held.lock:
            return (self._leases.most_blocks() - self._leases.blocks()) * self._block_bytes

    # ── copies alongside the steps ────────────────────────────────────────

    def follow(self, wait: Callable[[], float], stored: Sequence[int] = (), landed: Sequence[int] = ()) -> None:
        with self.held.lock:
            self.stores.follow(stored)
            self.loads.follow(landed)
        (self._out if stored else self._back).submit(lambda: self._copied(wait(), stored, landed))

    def _copied(self, seconds: float, stored: Sequence[int], landed: Sequence[int]) -> None:
        for number in stored:
            self.note_stored(number)
        self.loads.landed_together(landed, seconds)

    def keeping(self) -> list[str]:
        """Names of the tiers below that cannot forget, or have not yet forgotten what was dropped."""
        return [below.tier.name for below in self.below if below.is_keeping()]

    def status(self) -> tuple[TierStatus, ...]:
        """Host memory, then the tiers below it."""
        loads, stores = self.loads, self.stores
        with self.held.lock:
            totals = {"read": loads.totals, "write": stores.totals}
            host = host_status(self.counters, totals, {"read": len(loads), "write": len(stores)})
        return (host, *(tier.status() for tier in self.tiers))

    def flush(self) -> None:
        """Waits until everything stored by now is written to the tiers below, or given up."""
        for threads in (self._out, self._back, *(below.writer for below in self.below)):
            threads.flush()

    def close(self) -> None:
        """Writes all queued records; loads in progress are given up."""
        self.loads.readers.drop()
        close_all([self._out, self._back])
        close_all([self.loads.readers, *(one for below in self.below for one in (below.writer, below.mender))])
        for tier in self.tiers:
            tier.close()
