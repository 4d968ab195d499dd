"""A tier below host memory: records are read from it, and written to it after they were stored in host memory.

    accepted ──room in the tier's share──▶ due      pinned until it is written; the beginning of a prefix comes first
             └─────────none─────────────▶ spare    unpinned: written after all due records, if it is still there

Each tier has a thread that writes and one that tests a failed tier, so that no tier waits for another.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence

from quire.core.tier import is_of
from quire.tiers.guarded import GuardedTier
from quire.tiers.held_records import HeldRecords
from quire.tiers.host_cache import Record
from quire.tiers.threads import MakeThreads

LATE_SECONDS = 60.0
"""A write that takes longer delays only its own record."""
_LOG = logging.getLogger("quire.tiers")


class LowerTier:
    """Writes records of host memory to one tier in a thread, and reads records that are not to be forgotten there."""

    def __init__(
        self,
        tier: GuardedTier,
        held: HeldRecords,
        most_blocks: float,
        clock: Callable[[], float],
        threads: MakeThreads,
    ) -> None:
        """`most_blocks`: the most blocks of host memory that are pinned for this tier."""
        self.tier, self.pinned_blocks, self.is_late = tier, 0, False
        self._held, self._most_blocks, self._clock = held, most_blocks, clock
        self._due: deque[Record] = deque()
        self._spare: deque[Record] = deque()
        """The last one is written first: it is the beginning of its prefix."""
        self._to_forget: list[bytes] = []
        """Scopes that the tier has yet to drop."""
        self._begun_at: float | None = None
        """Start of the write in progress."""
        self.writer, self.mender = threads(1, f"quire-store-{tier.name}"), threads(1, f"quire-mend-{tier.name}")

    # ── with the lock ─────────────────────────────────────────────────────

    def promise(self, record: Record) -> bool:
        """Whether it stays in host memory until it is written. If so, its blocks count from now on."""
        if not self.tier.can_write or self.is_late or not self._has_room(record):
            return False
        self.pinned_blocks += len(record.blocks)
        return True

    def _has_room(self, record: Record) -> bool:
        return self.pinned_blocks + len(record.blocks) <= self._most_blocks

    def add(self, record: Record, is_promised: bool) -> None:
        """A record's bytes are complete: it is queued."""
        if record.is_forgotten:
            self.withdraw(record, is_promised)
        elif is_promised:
            record.pins += 1
            self._due.append(record)
        elif self.tier.can_write and not self.is_late:
            self._spare.append(record)
            if len(self._spare) > self._held.cache.blocks:
                self._spare.popleft()
                self._held.counters["not_written_behind"] += 1
        else:
            return
        self.writer.submit(self._write)

    def withdraw(self, record: Record, is_promised: bool) -> None:
        """A record's store was given up, or its scope was dropped."""
        self.pinned_blocks -= len(record.blocks) * is_promised

    def forget(self, scope: bytes) -> None:
        """Queued records of the scope are not written; written ones are dropped after the write in progress."""
        gone = [record for record in self._due if is_of(record.name, scope)]
        self._due = deque(record for record in self._due if not is_of(record.name, scope))
        self._spare = deque(record for record in self._spare if not is_of(record.name, scope))
        for record in gone:
            self._release(record)
        if self.tier.can_forget:
            self._to_forget.append(scope)
            self.writer.submit(self._forget)
        elif not self.tier.brings_only:
            _LOG.warning("tier %s: cannot forget, and keeps what it has", self.tier.name)

    def _next(self) -> Record | None:
        if self._due:
            return self._due.popleft()
        while self._spare:
            if not self._spare[-1].is_published:  # host memory needed its blocks
                self._spare.pop()
                self._held.counters["not_written_behind"] += 1
            elif self._has_room(self._spare[-1]) or not self.pinned_blocks:
                record = self._spare.pop()
                record.pins += 1
                self.pinned_blocks += len(record.blocks)
                return record
            else:
                break  # promised records come first
        return None

    def _release(self, record: Record) -> None:
        self.pinned_blocks -= len(record.blocks)
        self._held.cache.unpin(record)

    # ── without ───────────────────────────────────────────────────────────

    def is_keeping(self) -> bool:
        """Whether it cannot drop a scope, now or at all, or has not dropped all yet."""
        if not self.tier.can_forget:
            return not self.tier.brings_only
        return bool(self._to_forget) or self.is_late or not self.tier.can_read

    def has(self, names: Sequence[bytes]) -> list[bool]:
        """Which records it can load: none of a scope that is yet to be dropped."""
        found = self.tier.has(names)
        return [one and self._may_bring(name) for name, one in zip(names, found, strict=True)]

    def read(self, name: bytes, parts: Sequence[memoryview]) -> bool:
        return self._may_bring(name) and self.tier.read(name, parts)

    def _may_bring(self, name: bytes) -> bool:
        return not any(is_of(name, scope) for scope in self._to_forget)

    def _forget(self) -> None:
        """Drops scopes; if that fails, it is tried again when the tier works again."""
        for scope in tuple(self._to_forget):
            if self.tier.forget(scope):
                self._to_forget.remove(scope)

    def _mend(self) -> None:
        self.tier.mend()
        if self._to_forget:
            self.writer.submit(self._forget)

    def _write(self) -> None:
        """Writes all queued records: spare records often wait until the last due one is written."""
        while (record := self._begun()) is not None:
            self.tier.write(record.name, self._held.parts(record))
            with self._held.lock:
                self._release(record)
                was_late, self.is_late, self._begun_at = self.is_late, False, None
            self.writer.done += 1
            if was_late:
                _LOG.warning("tier %s: the write has returned; it is written to again", self.tier.name)
            if self._to_forget and self.tier.can_write:  # not while a record is being written: it may be of that scope
                self._forget()

    def _begun(self) -> Record | None:
        with self._held.lock:
            record = self._next()
            self._begun_at = None if record is None else self._clock()
            return record

    def turn(self) -> None:
        """Tests a failed tier if it is time to, and notices a write that does not return."""
        if self.tier.take_turn():
            self.mender.submit(self._mend)
        with self._held.lock:
            is_late = self._begun_at is not None and self._clock() - self._begun_at > LATE_SECONDS
            if self.is_late or not is_late:
                return
            self.is_late = True
            given_up = len(self._due) + len(self._spare)
            while self._due:
                self._release(self._due.popleft())
            self._spare.clear()
            self._held.counters["not_written_behind"] += given_up
        late = "tier %s: a write has not returned for %g s; nothing is written there until it does, %d records were not"
        _LOG.warning(late, self.tier.name, LATE_SECONDS, given_up)
