"""Host memory before disk before remote: one tier to the scheduler, whatever lies behind it.

    store    step ──▶ blocks of host memory ──thread──▶ disk, remote (written behind, unless too much waits)
    load     blocks ◀──thread── disk, else remote          and the next step copies from the blocks

Host memory is staging and tier at once: what is read from elsewhere stays there until others need the blocks. All
decisions fall in the engine's thread; threads of the stack only move bytes and report. The lock is never held while
a connector is asked.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from quire.core.connector import Connector, Layout
from quire.core.tier import Answer, Ends, Found, Load, Place, Staged, TierStatus, is_of
from quire.plan.records import Records
from quire.tiers.behind import Behind
from quire.tiers.costs import RateMeter, Totals, host_status
from quire.tiers.guarded import GuardedTier
from quire.tiers.shelf import HostShelf, Record
from quire.tiers.threads import Threads, close_all

LOAD_THREADS = 2
BEHIND_SHARE = 0.5
"""Of host memory, at most, for records that wait to be written elsewhere, in equal parts for those tiers: a slow one
must not fill it."""


class Memory(Protocol):
    @property
    def blocks(self) -> int: ...

    def parts(self, blocks: Sequence[int], size_bytes: int) -> list[memoryview]: ...


@dataclass(slots=True, eq=False)
class OpenLoad:
    load: Load
    records: list[Record]
    """Pinned: units in order, then the boundary."""
    is_reading: bool
    is_begun: bool = False
    """A thread has it in hand."""
    is_cancelled: bool = False


class Stack:
    def __init__(
        self,
        records: Records,
        memory: Memory,
        connectors: Sequence[Connector],
        layout: Layout,
        clock: Callable[[], float] = time.monotonic,
        lands_later: bool = False,
        threads: Callable[[int, str], Threads] = Threads,
    ) -> None:
        """`lands_later`: copies into pages go on alongside the steps, and a load is over when they are done. `threads`:
        makes so many of a name; a checker has its own, which run when it says so."""
        self.tiers = [GuardedTier(connector, layout, clock) for connector in connectors]
        self.counters: Counter[str] = Counter()
        """Records, for metrics: stored, host_full (not stored), not_written_behind, host_hits, host_misses,
        load_without_room, loads, failed_loads."""
        self.wake: Callable[[], None] = lambda: None
        """Rings when a record can be found, from whichever thread brought it."""
        self._records, self._memory, self._clock, self._lands_later = records, memory, clock, lands_later
        self._copying: dict[int, float] = {}
        """Loads that a step is copying from host memory, and since when."""
        self._landing: set[int] = set()
        self._storing: set[int] = set()
        """Loads and stores whose copies go on beside the steps."""
        self._copies = RateMeter()
        self._meters = {"read": Totals(), "write": Totals()}
        self.unit_tokens, self.blocks = records.unit_tokens, memory.blocks
        self._shelf = HostShelf(memory.blocks, records.block_bytes)
        self._lock = threading.Lock()
        self._open: dict[int, OpenLoad] = {}
        self._coming: dict[int, Record] = {}
        """Stores that a step will copy, by number."""
        self._promised: dict[int, list[bool]] = {}
        """The same: whether each tier below will get it."""
        self._accepted_at: dict[int, float] = {}
        self._coming_names: set[bytes] = set()
        self._numbers = 0
        self._answers: deque[Answer] = deque()
        share = BEHIND_SHARE * memory.blocks / max(1, sum(not tier.brings_only for tier in self.tiers))
        self._behind = [
            Behind(tier, self._shelf, self.parts, self._lock, share, self.counters, clock, threads)
            for tier in self.tiers
        ]
        self._readers = threads(LOAD_THREADS, "quire-load")
        self._out, self._back = threads(1, "quire-out"), threads(1, "quire-back")
        """Wait for copies beside the steps, which are done in order each way."""
        for tier in self.tiers:
            tier.mend()

    # ── what a load needs ─────────────────────────────────────────────────

    def find(self, keys: Sequence[bytes], ends: Ends) -> Found:
        """The longest prefix behind which every kind can go on, wherever its records lie."""
        self._mend()
        return self._records.greatest(keys[: self.most_units()], ends, self._found)

    def most_units(self) -> int:
        """What host memory could hold at once, the boundary beside."""
        each = max(1, self._shelf.needed_blocks(self._records.unit_bytes))
        boundary = self._shelf.needed_blocks(self._records.largest_boundary_bytes)
        room = self._shelf.blocks - boundary
        return max(0, room // each) if self._records.has_units else (1 << 62) * (room >= 0)

    def _found(self, names: list[bytes]) -> list[bool]:
        with self._lock:
            found = [name in self._shelf for name in names]
            lost = sum(one.is_begun and one.is_reading and one.is_cancelled for one in self._open.values())
        for behind in self._behind if lost < LOAD_THREADS else ():  # else nobody is left who could read
            missing = [place for place, is_there in enumerate(found) if not is_there]
            for place, is_there in zip(missing, behind.has([names[place] for place in missing]), strict=True):
                found[place] = is_there
        return found

    def begin(self, load: Load) -> None:
        wanted = self._records.wanted(load)
        with self._lock:
            here = self._pinned([name for name, _ in wanted])
            missing = self._reserved([(name, size) for name, size in wanted if name not in here])
            self.counters["host_misses"] += len(wanted) - len(here)
            if missing is None:
                self._let_go(list(here.values()))
                self.counters["load_without_room"] += 1
                self._answers.append(Answer(load.number, False, "host memory is full of transfers"))
                return
            records = {**here, **{record.name: record for record in missing}}
            self._open[load.number] = OpenLoad(load, [records[name] for name, _ in wanted], bool(missing))
        if missing:
            self._readers.submit(partial(self._bring, load.number, missing))
        else:
            self._answers.append(Answer(load.number, True, is_over=not self._lands_later))

    def _pinned(self, names: Sequence[bytes]) -> dict[bytes, Record]:
        """Those in host memory, before room for the others pushes any of them out; a chain's beginning is used last."""
        here = {name: record for name in reversed(names) if (record := self._shelf.use(name)) is not None}
        for record in here.values():
            record.pins += 1
        self.counters["host_hits"] += len(here)
        return here

    def _reserved(self, wanted: Sequence[tuple[bytes, int]]) -> list[Record] | None:
        """Room for all of these, or None."""
        taken: list[Record] = []
        for name, size in wanted:
            record = self._shelf.reserve(name, size)
            if record is None:
                self._let_go(taken)
                return None
            taken.append(record)
        return taken

    def _bring(self, number: int, missing: list[Record]) -> None:
        """In a thread: reads what is not in host memory yet."""
        reason, self._open[number].is_begun = "", True
        for record in missing:
            parts = self._memory.parts(record.blocks, record.size_bytes)
            if self._open[number].is_cancelled or not any(behind.read(record.name, parts) for behind in self._behind):
                reason = "a record is gone"
                break
            with self._lock:
                self._shelf.publish(record)
        with self._lock:
            opened = self._open[number]
            opened.is_reading = False
            self.counters["failed_loads" if reason else "loads"] += 1
            if opened.is_cancelled or reason:
                del self._open[number]
                self._let_go(opened.records)
        if not opened.is_cancelled:
            is_over = bool(reason) or not self._lands_later
            self._answers.append(Answer(number, not reason, reason, has_less=bool(reason), is_over=is_over))

    def cancel(self, number: int) -> None:
        with self._lock:
            opened = self._open.get(number)
            if opened is None:
                return
            opened.is_cancelled = True
            if not opened.is_reading and number not in self._landing:
                self._copying.pop(number, None)  # of a step that was abandoned
                del self._open[number]
                self._let_go(opened.records)

    def answers(self) -> Sequence[Answer]:
        return [self._answers.popleft() for _ in range(len(self._answers))]

    def staged(self, number: int) -> Staged:
        opened = self._open[number]
        self._copying[number] = self._clock()
        blocks = [record.blocks for record in opened.records]
        boundary = blocks.pop() if self._records.has_boundaries else ()
        return Staged(opened.load, tuple(blocks), boundary)

    def landed(self, number: int, byte_seconds: float | None = None) -> None:
        """`byte_seconds`: what copying a byte took, where that is known better than by the clock."""
        with self._lock:
            opened, begun = self._open.pop(number), self._copying.pop(number)
            self._landing.discard(number)
            records, size = opened.records, sum(record.size_bytes for record in opened.records)
            seconds = self._clock() - begun if byte_seconds is None else size * byte_seconds
            self._copies.note(size, seconds)
            self._meters["read"].note(size, seconds, len(records))
            self._let_go(records)
        if self._lands_later and not opened.is_cancelled:
            self._answers.append(Answer(number, True, is_staged=False))

    def follow(self, wait: Callable[[], float], stored: Sequence[int] = (), landed: Sequence[int] = ()) -> None:
        with self._lock:
            self._storing.update(stored)
            self._landing.update(landed)
        (self._out if stored else self._back).submit(lambda: self._copied(wait(), stored, landed))

    def _copied(self, seconds: float, stored: Sequence[int], landed: Sequence[int]) -> None:
        for number in stored:
            self.stored(number)
        with self._lock:
            size = sum(record.size_bytes for number in landed for record in self._open[number].records)
        for number in landed:
            self.landed(number, seconds / max(1, size))

    def seconds_to_load(self, size_bytes: int) -> float | None:
        return self._copies.seconds_for(size_bytes)

    def _let_go(self, records: Sequence[Record]) -> None:
        for record in records:
            self._shelf.unpin(record)

    # ── what a store brings ───────────────────────────────────────────────

    def renew(self, names: Sequence[bytes]) -> list[int]:
        """The last of a chain goes first when something must be forgotten: without the first none is of use."""
        with self._lock:
            for name in reversed(names):
                self._shelf.use(name)
            return [
                place for place, name in enumerate(names) if name not in self._shelf and name not in self._coming_names
            ]

    def accept(self, name: bytes, size_bytes: int) -> Place | None:
        with self._lock:
            record = self._shelf.reserve(name, size_bytes)
            if record is None:
                self.counters["host_full"] += 1
                return None
            self._numbers += 1
            self._coming[self._numbers] = record
            self._promised[self._numbers] = [behind.promise(record) for behind in self._behind]
            self._accepted_at[self._numbers] = self._clock()
            self._coming_names.add(name)
            return Place(self._numbers, record.blocks)

    def stored(self, number: int) -> None:
        """A step has copied a record into its blocks: from now on it can be found, and goes to the other tiers."""
        self._mend()
        with self._lock:
            record = self._coming.pop(number)
            self._storing.discard(number)
            self._coming_names.discard(record.name)
            self._shelf.publish(record)
            self.wake()
            self.counters["stored"] += 1
            self._meters["write"].note(record.size_bytes, self._clock() - self._accepted_at.pop(number))
            for behind, is_promised in zip(self._behind, self._promised.pop(number), strict=True):
                behind.add(record, is_promised)
            self._shelf.unpin(record)

    def give_up(self, number: int) -> None:
        with self._lock:
            if number in self._storing or number not in self._coming:
                return
            record = self._coming.pop(number)
            self._coming_names.discard(record.name)
            del self._accepted_at[number]
            for behind, is_promised in zip(self._behind, self._promised.pop(number), strict=True):
                behind.withdraw(record, is_promised)
            self._shelf.unpin(record)

    def forget(self, scope: bytes) -> None:
        """What is on its way in is not published; what lies below is dropped there, and until then nobody looks."""
        with self._lock:
            self._shelf.forget(scope)
            loading = [record for opened in self._open.values() for record in opened.records]
            for record in (*self._coming.values(), *loading):
                if is_of(record.name, scope):
                    record.is_forgotten = True
                    self._coming_names.discard(record.name)
            for behind in self._behind:
                behind.forget(scope)

    def keeping(self) -> list[str]:
        """Tiers that cannot forget, or have not yet what they were told to: whoever asks for it is told."""
        return [behind.tier.name for behind in self._behind if behind.is_keeping()]

    def _mend(self) -> None:
        for behind in self._behind:
            behind.turn()

    def status(self) -> tuple[TierStatus, ...]:
        """Host memory, then the tiers below it."""
        with self._lock:
            host = host_status(self.counters, self._meters, {"read": len(self._open), "write": len(self._coming)})
        return (host, *(tier.status() for tier in self.tiers))

    # ── what is held for another engine ───────────────────────────────────

    def hold(self, names: Sequence[bytes]) -> list[Record] | None:
        """Pins records in host memory; None: not all of them are there, and nothing changed."""
        with self._lock:
            if any(name not in self._shelf for name in names):
                return None
            return list(self._pinned(names).values())[::-1]

    def let_go(self, records: Sequence[Record]) -> None:
        with self._lock:
            self._let_go(records)

    def parts(self, record: Record) -> list[memoryview]:
        return self._memory.parts(record.blocks, record.size_bytes)

    # ── the end ───────────────────────────────────────────────────────────

    def flush(self) -> None:
        """Waits until everything stored by now is written behind, or given up."""
        for threads in (self._out, self._back, *(behind.writer for behind in self._behind)):
            threads.flush()

    def close(self) -> None:
        """What waits to be written is written first; loads under way are given up."""
        self._readers.drop()
        close_all([self._out, self._back])
        close_all([self._readers, *(one for behind in self._behind for one in (behind.writer, behind.mender))])
        for tier in self.tiers:
            tier.close()
