"""Loads of a stack: records in host memory are ready at once, a thread reads the others from the tiers below.

    begin ──┬── all in host memory ──────────────────┬──▶ staged ──step copies──▶ landed
            └── waiting ──thread──▶ reading ─────────┘
                                       └──▶ a record is gone: incomplete

A load that is cancelled while a thread reads keeps its blocks until the thread returns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial

from quire.core.tier import (
    Answer,
    Ends,
    Found,
    Load,
    Staged,
    TransferDone,
    TransferFailed,
    TransferIncomplete,
    TransferLanded,
    TransferStaged,
    is_of,
)
from quire.plan.records import Records
from quire.tiers.costs import RateMeter, Totals
from quire.tiers.held_records import HeldRecords
from quire.tiers.host_cache import Record
from quire.tiers.lower_tier import LowerTier
from quire.tiers.threads import MakeThreads

LOAD_THREADS = 2


class Progress(Enum):
    """The state of a load."""

    WAITING = "waits for a thread"
    READING = "a thread reads"
    STAGED = "in host memory"
    LANDING = "copied alongside the steps"


@dataclass(slots=True, eq=False)
class OpenLoad:
    """A load that is in progress, or staged and not in its pages yet."""

    load: Load
    records: list[Record]
    """Pinned: units in order, then the boundary."""
    progress: Progress
    is_cancelled: bool = False
    copied_since: float | None = None
    """When a step began to copy it."""

    @property
    def size_bytes(self) -> int:
        return sum(record.size_bytes for record in self.records)


class HostLoads:
    """Reads prefixes into host memory, and keeps them there until a step has copied them."""

    def __init__(
        self,
        records: Records,
        held: HeldRecords,
        below: Sequence[LowerTier],
        clock: Callable[[], float],
        *,
        lands_later: bool,
        threads: MakeThreads,
    ) -> None:
        """`below`: the tiers to read from, in this order. `lands_later`: copies run alongside the steps."""
        self.totals = Totals()
        self._records, self._held, self._below, self._clock = records, held, below, clock
        self._lands_later = lands_later
        self._open: dict[int, OpenLoad] = {}
        self._answers: deque[Answer] = deque()
        self._copies = RateMeter()
        self.readers = threads(LOAD_THREADS, "quire-load")

    def __len__(self) -> int:
        return len(self._open)

    def find(self, keys: Sequence[bytes], ends: Ends) -> Found:
        """The longest prefix after which every kind can continue, in whichever tiers its records are."""
        for one in self._below:
            one.turn()
        return self._records.greatest(keys[: self.most_units()], ends, self._found)

    def most_units(self) -> int:
        """Units that host memory could hold at once, in addition to a boundary."""
        cache = self._held.cache
        each = max(1, cache.needed_blocks(self._records.unit_bytes))
        room = cache.blocks - cache.needed_blocks(self._records.largest_boundary_bytes)
        return max(0, room // each) if self._records.has_units else (1 << 62) * (room >= 0)

    def _found(self, names: list[bytes]) -> list[bool]:
        with self._held.lock:
            found = [name in self._held.cache for name in names]
            lost = sum(one.is_cancelled and one.progress is Progress.READING for one in self._open.values())
        for below in self._below if lost < LOAD_THREADS else ():  # else no thread is left that could read
            missing = [place for place, is_there in enumerate(found) if not is_there]
            for place, is_there in zip(missing, below.has([names[place] for place in missing]), strict=True):
                found[place] = is_there
        return found

    def begin(self, load: Load) -> None:
        wanted, held = self._records.wanted(load), self._held
        with held.lock:
            here = held.pin([name for name, _ in wanted])  # before room for the others evicts any of them
            records = {record.name: record for record in here}
            missing = held.reserve([(name, size) for name, size in wanted if name not in records])
            held.counters["host_misses"] += len(wanted) - len(here)
            if missing is None:
                held.unpin(here)
                held.counters["load_without_room"] += 1
                self._answers.append(TransferFailed(load.number, "host memory is full of transfers"))
                return
            records.update((record.name, record) for record in missing)
            progress = Progress.WAITING if missing else Progress.STAGED
            self._open[load.number] = OpenLoad(load, [records[name] for name, _ in wanted], progress)
        if missing:
            self.readers.submit(partial(self._bring, load.number, missing))
        else:
            self._answers.append(self._arrived(load.number))

    def _arrived(self, number: int) -> Answer:
        return TransferStaged(number) if self._lands_later else TransferDone(number)

    def _bring(self, number: int, missing: list[Record]) -> None:
        """In a thread: reads what is not in host memory."""
        opened = self._open[number]
        opened.progress = Progress.READING
        is_whole = all(self._read(opened, record) for record in missing)
        with self._held.lock:
            opened.progress = Progress.STAGED
            self._held.counters["loads" if is_whole else "failed_loads"] += 1
            if opened.is_cancelled or not is_whole:
                del self._open[number]
                self._held.unpin(opened.records)
        if not opened.is_cancelled:
            gone = TransferIncomplete(number, "a record is gone")
            self._answers.append(self._arrived(number) if is_whole else gone)

    def _read(self, opened: OpenLoad, record: Record) -> bool:
        parts = self._held.parts(record)
        if opened.is_cancelled or not any(below.read(record.name, parts) for below in self._below):
            return False
        with self._held.lock:
            self._held.cache.publish(record)
        return True

    def cancel(self, number: int) -> None:
        with self._held.lock:
            opened = self._open.get(number)
            if opened is None:
                return
            opened.is_cancelled = True
            if opened.progress is Progress.STAGED:
                del self._open[number]
                self._held.unpin(opened.records)

    def answers(self) -> Sequence[Answer]:
        return [self._answers.popleft() for _ in range(len(self._answers))]

    def forget(self, scope: bytes) -> None:
        """With the lock: records of a scope that are being read are not published."""
        for record in [record for opened in self._open.values() for record in opened.records]:
            record.is_forgotten = record.is_forgotten or is_of(record.name, scope)

    # ── what a step copies ────────────────────────────────────────────────

    def staged_load(self, number: int) -> Staged:
        opened = self._open[number]
        opened.copied_since = self._clock()
        return Staged(opened.load, tuple(record.blocks for record in opened.records))

    def follow(self, numbers: Sequence[int]) -> None:
        """With the lock: these are copied alongside the steps, and keep their blocks until then."""
        for number in numbers:
            self._open[number].progress = Progress.LANDING

    def landed_together(self, numbers: Sequence[int], seconds: float) -> None:
        """All of these loads were copied by one copy of this duration."""
        with self._held.lock:
            size = sum(self._open[number].size_bytes for number in numbers)
        for number in numbers:
            self.note_landed(number, seconds / max(1, size))

    def note_landed(self, number: int, byte_seconds: float | None = None) -> None:
        """`byte_seconds`: duration of the copy per byte, if it was measured more exactly than by the clock."""
        with self._held.lock:
            opened = self._open.pop(number)
            assert opened.copied_since is not None, "a step has copied it"
            size = opened.size_bytes
            seconds = self._clock() - opened.copied_since if byte_seconds is None else size * byte_seconds
            self._copies.note(size, seconds)
            self.totals.note(size, seconds, len(opened.records))
            self._held.unpin(opened.records)
        if self._lands_later and not opened.is_cancelled:
            self._answers.append(TransferLanded(number))

    def seconds_to_load(self, size_bytes: int) -> float | None:
        return self._copies.seconds_for(size_bytes)
