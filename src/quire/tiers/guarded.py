"""Guards a connector: a failure is logged once, and the connector is not used until it works again.

    up ──a call fails──▶ down ──after a while, in a thread: register, write, read back──▶ up

When only writing fails (a full disk), reading continues. A connector that is only read (`brings_only`) gets no writes.
Pauses double until a record is transferred: a disk may have room for the small record of the test and no other.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from quire.core.connector import Connector, Forgets, Layout, TierFailed
from quire.tiers.status import TierStatus

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
PROBE_BYTES = 4096
WAYS = ("read", "write")
Result = TypeVar("Result")
_LOG = logging.getLogger("quire.tiers")


class GuardedTier:
    """Calls a connector. Every exception from it is counted and logged, and pauses its use."""

    def __init__(self, connector: Connector, layout: Layout, clock: Callable[[], float]) -> None:
        self.connector, self.name = connector, connector.name
        self.brings_only: bool = getattr(connector, "brings_only", False)
        self.can_forget = isinstance(connector, Forgets)
        self.can_read = self.can_write = False
        self.reason = "not registered yet"
        self.counters: Counter[str] = Counter()
        """For metrics: hits, misses, bytes_read, bytes_written, failures."""
        self._failures: Counter[str] = Counter()
        self._done: Counter[str] = Counter()
        self._begun: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}
        """All by operation."""
        self._counting = threading.Lock()
        self._layout, self._clock = layout, clock
        self._pause = FIRST_PAUSE_SECONDS
        self._mend_at = clock()
        self._was_told = False
        self._mending = threading.Lock()

    def status(self) -> TierStatus:
        with self._counting:
            return TierStatus(
                self.name,
                self.can_read,
                self.can_write,
                self.counters["hits"],
                self.counters["misses"],
                bytes={"read": self.counters["bytes_read"], "write": self.counters["bytes_written"]},
                transfers={way: self._done[way] for way in WAYS},
                seconds={way: self._seconds.get(way, 0.0) for way in WAYS},
                in_flight={way: self._begun[way] - self._done[way] for way in WAYS},
                failures=dict(self._failures),
            )

    def take_turn(self) -> bool:
        """Whether it is time to test if it works again. Returns True once for each pause."""
        if (self.can_read and (self.can_write or self.brings_only)) or self._clock() < self._mend_at:
            return False
        self._mend_at = self._clock() + self._pause
        return True

    def mend(self) -> None:
        """Registers it, and tests whether a written record can be read back; may wait."""
        if not self._mending.acquire(blocking=False):
            return
        try:
            self._try("use", self._register, reading=True, is_trial=True)
            if self.can_read and not self.brings_only:
                self._try("write", self._round_trip, reading=False, is_trial=True)
        finally:
            self._mending.release()

    def _register(self) -> None:
        self.connector.register(self._layout)
        self._has([b"probe"])
        self.can_read = True
        if self.brings_only:
            self._recovered()

    def _round_trip(self) -> None:
        name, data = b"probe" + os.urandom(16), os.urandom(PROBE_BYTES)
        memory, back = bytearray(data), bytearray(PROBE_BYTES)
        self.connector.write(name, [memoryview(memory)])
        memory[:] = bytes(PROBE_BYTES)  # blocks of host memory are reused soon after a write too
        is_there = self.connector.read(name, [memoryview(back)])
        self.connector.drop(name)
        if not is_there or back != data:
            raise TierFailed("what was written does not come back")
        self._recovered()

    def has(self, names: Sequence[bytes]) -> list[bool]:
        if not self.can_read or not names:
            return [False] * len(names)
        found = self._try("look up", lambda: self._has(names), reading=True)
        return found if found is not None else [False] * len(names)

    def _has(self, names: Sequence[bytes]) -> list[bool]:
        found = self.connector.has(names)
        if not isinstance(found, list) or len(found) != len(names):
            raise TierFailed(f"has() of {len(names):,} names is no list of as many answers")
        return [bool(is_there) for is_there in found]

    def read(self, name: bytes, parts: Sequence[memoryview]) -> bool:
        if not self.can_read:
            return False
        is_there = self._try("read", lambda: bool(self.connector.read(name, parts)), reading=True) or False
        with self._counting:
            self.counters["hits" if is_there else "misses"] += 1
            self.counters["bytes_read"] += is_there * sum(map(len, parts))
        if is_there:
            self._pause = FIRST_PAUSE_SECONDS
        return is_there

    def write(self, name: bytes, parts: Sequence[memoryview]) -> None:
        """Writes a record, unless it already exists."""
        if self.can_write and not any(self.has([name])):
            self._try("write", lambda: self._write(name, parts), reading=False)

    def _write(self, name: bytes, parts: Sequence[memoryview]) -> None:
        self.connector.write(name, parts)
        self._pause = FIRST_PAUSE_SECONDS
        with self._counting:
            self.counters["bytes_written"] += sum(map(len, parts))

    def forget(self, scope: bytes) -> bool:
        """Whether everything that it has of a scope is gone."""
        return self.can_read and self._try("forget", lambda: self._forget(scope), reading=False) is True

    def _forget(self, scope: bytes) -> bool:
        assert isinstance(self.connector, Forgets), "asked before"
        self.connector.forget(scope)
        return True

    def attempt(self, what: str, action: Callable[[], Result]) -> Result | None:
        """Runs another action of this connector under the same guard; None: it failed."""
        return self._try(what, action, reading=True)

    def note_failure(self, what: str) -> None:
        """Counts a failure that the caller noticed; the connector stays in use."""
        self._count(self._failures, what)
        self._count(self.counters, "failures")

    def close(self) -> None:
        self._try("close", self.connector.close, reading=True)

    def _try(self, what: str, action: Callable[[], Result], reading: bool, is_trial: bool = False) -> Result | None:
        """A connector may be third-party code: any exception is its failure, and never the engine's."""
        begin = self._clock()
        self._count(self._begun, what)
        try:
            return action()
        except Exception as error:
            self._count(self._failures, what)
            self._failed(f"cannot {what}: {error or type(error).__name__}", reading, is_trial)
            return None
        finally:
            with self._counting:
                self._done[what] += 1
                self._seconds[what] = self._seconds.get(what, 0.0) + self._clock() - begin

    def _count(self, counter: Counter[str], what: str) -> None:
        with self._counting:
            counter[what] += 1

    def _failed(self, reason: str, reading: bool, is_trial: bool) -> None:
        """Calls in progress when the connector fails all fail one after another: pauses double only once for them."""
        with self._counting:
            self.counters["failures"] += 1
            was_up, pause = self.can_read if reading else self.can_write, self._pause
            self.can_write = False
            self.can_read = self.can_read and not reading
            self.reason = reason
            if was_up or is_trial:
                self._mend_at = self._clock() + pause
                self._pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            was_told, self._was_told = self._was_told, True
        if not was_told:
            rest = "reading goes on" if self.can_read else "goes on without it"
            _LOG.warning("tier %s: %s; %s, tries again in %g s", self.name, reason, rest, pause)

    def _recovered(self) -> None:
        if self._was_told:
            _LOG.warning("tier %s: works again", self.name)
        self.can_write = not self.brings_only
        self._was_told, self.reason = False, ""
