"""Host memory on virtual time: it keeps what steps store, and loads take bytes ÷ bandwidth, one after another.

    load      begin ──── bytes ÷ bandwidth ────▶ done
    faults    failed │ a record is gone │ late, after the deadline │ an outage of the tier

Faults are drawn from a seed. Bytes are counted and nothing is moved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from random import Random

from quire.core.rules import Rules
from quire.core.tier import Answer, Ends, Found, Load, Place, TransferDone, TransferFailed, TransferIncomplete
from quire.plan.records import Records
from quire.tiers.in_memory import NEVER, InMemoryStore, Transfer

FAULT_RATE = 0.3
"""Fraction of loads that fail, with faults."""
MEAN_UP_SECONDS, MEAN_DOWN_SECONDS = 120.0, 20.0


@dataclass(frozen=True, slots=True)
class HostCost:
    """What transfers from host memory cost, and whether they fail."""

    bytes_per_second: float
    faults_seed: int | None = None
    """None: nothing goes wrong."""


class Fate(str, Enum):
    """How a load ends."""

    DONE = "done"
    FAILED = "failed"
    GONE = "gone"
    """A record no longer exists: a shorter prefix may exist."""
    LATE = "late"


class Outages:
    """Times at which the tier cannot be reached, drawn from a seed."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._is_down, self._until = False, random.expovariate(1 / MEAN_UP_SECONDS)
        self.count = 0

    def is_down(self, now: float) -> bool:
        while now >= self._until:
            self._is_down = not self._is_down
            self.count += self._is_down
            mean = MEAN_DOWN_SECONDS if self._is_down else MEAN_UP_SECONDS
            self._until += self._random.expovariate(1 / mean)
        return self._is_down


class SimulatedTier(InMemoryStore):
    """Host memory of an engine on virtual time: transfers take turns on one channel, and fail as `cost` says."""

    def __init__(self, records: Records, blocks: int, cost: HostCost, rules: Rules, clock: Callable[[], float]) -> None:
        super().__init__(records, blocks, clock)
        self.counters: Counter[str] = Counter()
        self._cost, self._rules = cost, rules
        self._random = None if cost.faults_seed is None else Random(cost.faults_seed)
        self._outages = None if self._random is None else Outages(self._random)
        self._fates: dict[int, Fate] = {}
        """How transfers in progress will end."""
        self._channel_free_at = 0.0

    # ── loads ─────────────────────────────────────────────────────────────

    def find(self, keys: Sequence[bytes], ends: Ends) -> Found:
        return Found(0) if self._is_down() else super().find(keys, ends)

    def _is_down(self) -> bool:
        """Every second outage also loses what was stored."""
        if self._outages is None or not self._outages.is_down(self.clock()):
            return False
        if self._outages.count != self.counters["outages"]:
            self.counters["outages"] = self._outages.count
            for number, one in self.transfers.items():
                self._fates[number] = Fate.LATE
                due = max(one.due, self._late(one.load))
                self.transfers[number] = replace(one, answer=TransferDone(number), due=due)
            if self._outages.count % 2:
                self.cache.forget()
        return True

    def transfer(self, load: Load) -> Transfer:
        transfer = super().transfer(load)
        is_whole = isinstance(transfer.answer, TransferDone)
        fate = Fate.LATE if self._is_down() else self._drawn() if is_whole else Fate.GONE
        seconds = sum(size for _, size in self.records.wanted(load)) / self._cost.bytes_per_second
        self._channel_free_at = max(self._channel_free_at, self.clock()) + seconds
        self._fates[load.number] = fate
        late = self._late(load) if fate is Fate.LATE else 0.0
        return replace(transfer, answer=_answer(load.number, fate), due=max(late, self._channel_free_at))

    def _late(self, load: Load) -> float:
        return self.clock() + 2 * self._rules.seconds_to_load(self.records.most_prefix_bytes(load.tokens))

    def _drawn(self) -> Fate:
        if self._random is None or self._random.random() >= FAULT_RATE:
            return Fate.DONE
        return self._random.choice((Fate.FAILED, Fate.GONE, Fate.LATE))

    def answers(self) -> Sequence[Answer]:
        self._is_down()
        return super().answers()

    def end(self, transfer: Transfer) -> Answer:
        load, answer = transfer.load, super().end(transfer)
        self.counters[f"loads_{self._fates.pop(load.number).value}"] += 1
        if load.number in self.staged:
            self.counters["loaded_tokens"] += load.tokens - load.held_tokens
            self.counters["loaded_bytes"] += sum(record.size_bytes for record in transfer.records)
        return answer

    # ── stores ────────────────────────────────────────────────────────────

    def accept(self, name: bytes, size_bytes: int) -> Place | None:
        place = None if self._is_down() else super().accept(name, size_bytes)
        if place is None:
            self.counters["not_stored"] += 1
        return place

    def note_stored(self, number: int) -> None:
        self.counters["stored_records"] += 1
        self.counters["stored_bytes"] += self.coming[number].size_bytes
        super().note_stored(number)

    def seconds_to_load(self, size_bytes: int) -> float | None:
        return size_bytes / self._cost.bytes_per_second

    # ── questions ─────────────────────────────────────────────────────────

    def next_moment(self) -> float:
        """When the next transfer ends."""
        return min((one.due for one in self.transfers.values()), default=NEVER)

    def held_blocks(self) -> int:
        """Blocks of transfers and of stores in progress; none if nothing is in progress."""
        return self.cache.blocks - self.cache.free_blocks - self.cache.unpinned_blocks


def _answer(number: int, fate: Fate) -> Answer:
    if fate in (Fate.DONE, Fate.LATE):
        return TransferDone(number)
    return (TransferIncomplete if fate is Fate.GONE else TransferFailed)(number, fate.value)
