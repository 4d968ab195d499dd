"""Host memory on virtual time: what steps store is there, and a load takes its bytes ÷ bandwidth, one after another.

    load      begin ──── bytes ÷ bandwidth ────▶ done
    faults    failed │ some of it is gone │ late, when nobody waits any more │ the tier is lost for a while, then back

Faults are drawn from a seed. Bytes are counted and nothing is moved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random

from quire.core.rules import Rules
from quire.core.tier import Answer, Ends, Found, Load, Place, is_of
from quire.plan.records import Records
from quire.tiers.shelf import HostShelf, Record

FAULT_RATE = 0.3
"""Of loads that end otherwise than done, where there are faults."""
MEAN_UP_SECONDS, MEAN_DOWN_SECONDS = 120.0, 20.0
NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class HostCost:
    bytes_per_second: float
    faults_seed: int | None = None
    """None: nothing goes wrong."""


class Fate(str, Enum):
    DONE = "done"
    FAILED = "failed"
    GONE = "gone"
    """A record is not there any more: less may still come."""
    LATE = "late"


@dataclass(slots=True, eq=False)
class _Transfer:
    load: Load
    records: list[Record]
    fate: Fate
    due: float
    is_awaited: bool = True


class Outages:
    """The tier is lost for a while, again and again."""

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


class SimulatedTier:
    """Tier, keeper and shelf of an engine on virtual time."""

    def __init__(self, records: Records, blocks: int, cost: HostCost, rules: Rules, clock: Callable[[], float]) -> None:
        self.counters: Counter[str] = Counter()
        self._records, self._cost, self._clock, self._rules = records, cost, clock, rules
        self._shelf = HostShelf(blocks, records.block_bytes)
        self._random = None if cost.faults_seed is None else Random(cost.faults_seed)
        self._outages = None if self._random is None else Outages(self._random)
        self._transfers: dict[int, _Transfer] = {}
        self._staged: dict[int, list[Record]] = {}
        self._coming: dict[int, Record] = {}
        self._coming_names: set[bytes] = set()
        self._numbers = 0
        self._channel_free_at = 0.0

    # ── loads ─────────────────────────────────────────────────────────────

    def find(self, keys: Sequence[bytes], ends: Ends) -> Found:
        if self._is_down():
            return Found(0)
        return self._records.greatest(keys, ends, lambda names: [name in self._shelf for name in names])

    def _is_down(self) -> bool:
        """What it kept is gone every other time that it is lost."""
        if self._outages is None or not self._outages.is_down(self._clock()):
            return False
        if self._outages.count != self.counters["outages"]:
            self.counters["outages"] = self._outages.count
            for one in self._transfers.values():
                one.fate, one.due = Fate.LATE, max(one.due, self._late(one.load))
            if self._outages.count % 2:
                self._shelf.forget()
        return True

    def begin(self, load: Load) -> None:
        wanted = self._records.wanted(load)
        records = [record for name, _ in wanted if (record := self._shelf.use(name)) is not None]
        for record in records:
            record.pins += 1
        fate = Fate.LATE if self._is_down() else Fate.GONE if len(records) < len(wanted) else self._drawn()
        self._channel_free_at = max(self._channel_free_at, self._clock()) + (
            sum(size for _, size in wanted) / self._cost.bytes_per_second
        )
        late = self._late(load) if fate is Fate.LATE else 0.0
        self._transfers[load.number] = _Transfer(load, records, fate, max(late, self._channel_free_at))

    def _late(self, load: Load) -> float:
        return self._clock() + 2 * self._rules.seconds_to_load(self._records.most_prefix_bytes(load.tokens))

    def _drawn(self) -> Fate:
        if self._random is None or self._random.random() >= FAULT_RATE:
            return Fate.DONE
        return self._random.choice((Fate.FAILED, Fate.GONE, Fate.LATE))

    def cancel(self, number: int) -> None:
        """A transfer under way keeps its blocks until it returns."""
        if number in self._transfers:
            self._transfers[number].is_awaited = False
        elif number in self._staged:
            self.landed(number)

    def answers(self) -> Sequence[Answer]:
        self._is_down()
        over = [one for one in self._transfers.values() if one.due <= self._clock()]
        return [answer for one in over if (answer := self._ended(one)) is not None]

    def _ended(self, transfer: _Transfer) -> Answer | None:
        number, is_done = transfer.load.number, transfer.fate in (Fate.DONE, Fate.LATE)
        del self._transfers[number]
        self.counters[f"loads_{transfer.fate.value}"] += 1
        if transfer.is_awaited and is_done:
            self._staged[number] = transfer.records
            self.counters["loaded_tokens"] += transfer.load.tokens - transfer.load.held_tokens
            self.counters["loaded_bytes"] += sum(record.size_bytes for record in transfer.records)
        else:
            self._let_go(transfer.records)
        reason = "" if is_done else transfer.fate.value
        return Answer(number, is_done, reason, transfer.fate is Fate.GONE) if transfer.is_awaited else None

    def landed(self, number: int) -> None:
        self._let_go(self._staged.pop(number))

    def _let_go(self, records: Sequence[Record]) -> None:
        for record in records:
            self._shelf.unpin(record)

    # ── stores ────────────────────────────────────────────────────────────

    def renew(self, names: Sequence[bytes]) -> list[int]:
        for name in reversed(names):
            self._shelf.use(name)
        return [p for p, name in enumerate(names) if name not in self._shelf and name not in self._coming_names]

    def accept(self, name: bytes, size_bytes: int) -> Place | None:
        record = None if self._is_down() else self._shelf.reserve(name, size_bytes)
        if record is None:
            self.counters["not_stored"] += 1
            return None
        self._numbers += 1
        self._coming[self._numbers] = record
        self._coming_names.add(name)
        return Place(self._numbers, record.blocks)

    def give_up(self, number: int) -> None:
        record = self._coming.pop(number, None)
        if record is not None:
            self._coming_names.discard(record.name)
            self._shelf.unpin(record)

    def forget(self, scope: bytes) -> None:
        self._shelf.forget(scope)
        for record in self._coming.values():
            record.is_forgotten = record.is_forgotten or is_of(record.name, scope)

    def stored(self, number: int) -> None:
        record = self._coming.pop(number)
        self._coming_names.discard(record.name)
        self._shelf.publish(record)
        self._shelf.unpin(record)
        self.counters["stored_records"] += 1
        self.counters["stored_bytes"] += record.size_bytes

    def seconds_to_load(self, size_bytes: int) -> float | None:
        return size_bytes / self._cost.bytes_per_second

    # ── questions ─────────────────────────────────────────────────────────

    def next_moment(self) -> float:
        """When the next transfer returns."""
        return min((one.due for one in self._transfers.values()), default=NEVER)

    def held_blocks(self) -> int:
        """Of transfers, and of stores on their way: none when nothing is under way."""
        return self._shelf.blocks - self._shelf.free_blocks - self._shelf.unpinned_blocks
