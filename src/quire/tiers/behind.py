"""Records of host memory on their way to one tier below it.

    accepted ──room in the tier's share──▶ due      pinned until it is written; the beginning of a prefix comes first
             └─────────none─────────────▶ spare    unpinned: written when what is due has gone, if it is still there

Each tier has a thread that writes and one that mends, so that none waits for another.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence

from quire.core.tier import is_of
from quire.tiers.guarded import GuardedTier
from quire.tiers.shelf import HostShelf, Record
from quire.tiers.threads import Threads

LATE_SECONDS = 60.0
"""A write that takes longer holds up nothing but its own record."""
_LOG = logging.getLogger("quire.tiers")


class Behind:
    def __init__(
        self,
        tier: GuardedTier,
        shelf: HostShelf,
        parts: Callable[[Record], list[memoryview]],
        lock: threading.Lock,
        most_blocks: float,
        counters: Counter[str],
        clock: Callable[[], float],
        threads: Callable[[int, str], Threads] = Threads,
    ) -> None:
        """`lock` guards the shelf; `most_blocks` of it are pinned for this tier at most."""
        self.tier, self.pinned_blocks, self.is_late = tier, 0, False
        self._shelf, self._parts, self._lock, self._most_blocks = shelf, parts, lock, most_blocks
        self._counters, self._clock = counters, clock
        self._due: deque[Record] = deque()
        self._spare: deque[Record] = deque()
        """The last one goes first: of a prefix that is its beginning."""
        self._to_forget: list[bytes] = []
        """Scopes."""
        self._begun_at: float | None = None
        """The write that the connector has in hand."""
        self.writer, self.mender = threads(1, f"quire-store-{tier.name}"), threads(1, f"quire-mend-{tier.name}")

    # ── with the lock ─────────────────────────────────────────────────────

    def promise(self, record: Record) -> bool:
        """Whether it stays in host memory until it is written; then it is counted from now on."""
        if not self.tier.can_write or self.is_late or not self._has_room(record):
            return False
        self.pinned_blocks += len(record.blocks)
        return True

    def _has_room(self, record: Record) -> bool:
        return self.pinned_blocks + len(record.blocks) <= self._most_blocks

    def add(self, record: Record, is_promised: bool) -> None:
        """Its bytes are there."""
        if record.is_forgotten:
            self.withdraw(record, is_promised)
        elif is_promised:
            record.pins += 1
            self._due.append(record)
        elif self.tier.can_write and not self.is_late:
            self._spare.append(record)
            if len(self._spare) > self._shelf.blocks:
                self._spare.popleft()
                self._counters["not_written_behind"] += 1
        else:
            return
        self.writer.submit(self._write)

    def withdraw(self, record: Record, is_promised: bool) -> None:
        """It will not come."""
        self.pinned_blocks -= len(record.blocks) * is_promised

    def forget(self, scope: bytes) -> None:
        """What waits is not written; what was is dropped behind the write that is under way."""
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
                self._counters["not_written_behind"] += 1
            elif self._has_room(self._spare[-1]) or not self.pinned_blocks:
                record = self._spare.pop()
                record.pins += 1
                self.pinned_blocks += len(record.blocks)
                return record
            else:
                break  # what was promised comes first
        return None

    def _release(self, record: Record) -> None:
        self.pinned_blocks -= len(record.blocks)
        self._shelf.unpin(record)

    # ── without ───────────────────────────────────────────────────────────

    def is_keeping(self) -> bool:
        """Whether it cannot forget, now or at all, or has something to forget since before."""
        if not self.tier.can_forget:
            return not self.tier.brings_only
        return bool(self._to_forget) or self.is_late or not self.tier.can_read

    def has(self, names: Sequence[bytes]) -> list[bool]:
        """What is still to be forgotten is not there."""
        found = self.tier.has(names)
        return [one and self._may_bring(name) for name, one in zip(names, found, strict=True)]

    def read(self, name: bytes, parts: Sequence[memoryview]) -> bool:
        return self._may_bring(name) and self.tier.read(name, parts)

    def _may_bring(self, name: bytes) -> bool:
        return not any(is_of(name, scope) for scope in self._to_forget)

    def _forget(self) -> None:
        """A tier that fails at it is asked again when it works again."""
        for scope in tuple(self._to_forget):
            if self.tier.forget(scope):
                self._to_forget.remove(scope)

    def _mend(self) -> None:
        self.tier.mend()
        if self._to_forget:
            self.writer.submit(self._forget)

    def _write(self) -> None:
        """Whatever waits: what is spare has often to wait until the last that is due was written."""
        while (record := self._begun()) is not None:
            self.tier.write(record.name, self._parts(record))
            with self._lock:
                self._release(record)
                was_late, self.is_late, self._begun_at = self.is_late, False, None
            self.writer.done += 1
            if was_late:
                _LOG.warning("tier %s: the write has returned; it is written to again", self.tier.name)
            if self._to_forget and self.tier.can_write:  # with no record in hand: it may be of that scope
                self._forget()

    def _begun(self) -> Record | None:
        with self._lock:
            record = self._next()
            self._begun_at = None if record is None else self._clock()
            return record

    def turn(self) -> None:
        """Sees whether the tier works again, if it is time to, and whether it still writes."""
        if self.tier.take_turn():
            self.mender.submit(self._mend)
        with self._lock:
            is_late = self._begun_at is not None and self._clock() - self._begun_at > LATE_SECONDS
            if self.is_late or not is_late:
                return
            self.is_late = True
            given_up = len(self._due) + len(self._spare)
            while self._due:
                self._release(self._due.popleft())
            self._spare.clear()
            self._counters["not_written_behind"] += given_up
        told = "tier %s: a write has not returned for %g s; nothing is written there until it does, %d records were not"
        _LOG.warning(told, self.tier.name, LATE_SECONDS, given_up)
