"""Stand-ins for what lies outside the engine: a store that pins pages, a tier that misbehaves, a drafter that errs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random

import numpy as np

from quire.cache.pool import Holder, Pages
from quire.check.contents import KindContents
from quire.check.definitions import Ints, Violation, is_fixed
from quire.check.shadow import ShadowRunner
from quire.core.request import Tokens
from quire.core.tier import Answer, Ends, Found, Load
from quire.scheduler.scheduler import Scheduler


@dataclass(frozen=True, slots=True, eq=False)
class Pin:
    stage: int
    kind: int
    pages: Pages
    contents: Ints
    until: int


class PinningStore:
    """Reads pages that are settled or cached, for a few steps; meanwhile they may not change.

    It pins at most as many pages of a stage as there are sheets to spare: one pinned page keeps at most one sheet from
    the elder.
    """

    def __init__(self, scheduler: Scheduler, runner: ShadowRunner, spare: int) -> None:
        self.scheduler, self.runner, self.spare = scheduler, runner, spare
        self.pins: list[Pin] = []

    def pin(self, random: Random, until: int) -> bool:
        """Pins a random page that may be read. False: there is none, too many are pinned, or copies are due first."""
        stage = random.randrange(len(self.scheduler.memories))
        kind = random.randrange(len(self.scheduler.memories[stage].tables))
        pages = self._readable(stage, kind)
        if self.scheduler._copies or not len(pages) or sum(pin.stage == stage for pin in self.pins) >= self.spare:
            return False
        shelf = self.scheduler.memories[stage].pool.shelves[kind]
        used = shelf.used_in_sheet[pages // shelf.pages_per_sheet]
        lonely = pages[used == used.min()]  # what compaction would like to move
        chosen = np.array([random.choice((lonely if random.random() < 0.7 else pages).tolist())])
        self.scheduler.memories[stage].pool.hold(kind, chosen, Holder.PIN)
        self.pins.append(Pin(stage, kind, chosen, self._contents(stage, kind).slots[chosen].copy(), until))
        return True

    def check(self) -> None:
        """What is read stays where it is, as it is."""
        for pin in self.pins:
            contents, pool = self._contents(pin.stage, pin.kind), self.scheduler.memories[pin.stage].pool
            if not pool.shelves[pin.kind].count(Holder.PIN)[pin.pages].all():
                raise Violation(f"{contents.table.plan.name}: page {pin.pages[0]} was moved while it was read")
            if not np.array_equal(contents.slots[pin.pages], pin.contents):
                raise Violation(f"{contents.table.plan.name}: page {pin.pages[0]} changed while it was read")

    def unpin(self, now: int) -> None:
        """Lets go what was read."""
        for pin in [pin for pin in self.pins if pin.until <= now]:
            self.scheduler.memories[pin.stage].pool.drop(pin.kind, pin.pages, Holder.PIN)
            self.pins.remove(pin)

    def _contents(self, stage: int, kind: int) -> KindContents:
        return self.runner.stages[stage][kind]

    def _readable(self, stage: int, kind: int) -> Pages:
        """Pages that nobody writes to any more: cached ones, and those that settled tokens fill."""
        memory = self.scheduler.memories[stage]
        table, rows = memory.tables[kind], self.scheduler.rows
        cached = np.flatnonzero(memory.pool.shelves[kind].count(Holder.CACHE) > 0)
        landed = [row for _, row in self.scheduler._landed]
        settled = [
            table.pages[row, :, int(table.column(np.asarray(logical)))]
            for row in rows.requests
            if not is_fixed(table.kind) and not rows.is_loading[row] and row not in landed
            for logical in range(table.first[row], min(table.end[row], rows.settled[row] // table.plan.page_tokens))
        ]
        return np.unique(np.concatenate([cached, *settled]))


class ErringDrafter:
    """Knows what a row will yield, and says it wrongly from some place on, or says nothing."""

    def __init__(self, random: Random, script_of: Callable[[int], Ints]) -> None:
        self.random, self.script_of = random, script_of
        """By row: prompt and outputs of its tenant."""
        self.told: dict[int, int] = {}
        """By row: how many tokens were told."""

    def enter(self, row: int, tokens: Tokens) -> None:
        self.told[row] = 0
        self.extend(row, tokens)

    def extend(self, row: int, tokens: Tokens) -> None:
        begin, self.told[row] = self.told[row], self.told[row] + len(tokens)
        if not np.array_equal(tokens, self.script_of(row)[begin : self.told[row]]):
            raise Violation(f"the drafter is told tokens of row {row} that are not its own")

    def propose(self, row: int, count: int) -> Tokens:
        most = self.random.choice((0, count, count, self.random.randint(0, count)))
        guessed = self.script_of(row)[self.told[row] : self.told[row] + most].astype(np.int32)
        guessed[self.random.choice((0, most, most, self.random.randint(0, most))) :] += 1
        return guessed


class Fate(str, Enum):
    """How a load ends."""

    DONE = "load done"
    FAILED = "load failed"
    LATE = "load late"
    LOST = "load lost"
    LESS = "load has less"
    """It fails, and the tier may bring fewer tokens."""


@dataclass(slots=True)
class OpenLoad:
    load: Load
    fate: Fate
    begun: float
    due: float


class FaultyTier:
    """Brings back what it was given, or fails, or answers when nobody waits any more, or never does."""

    def __init__(
        self, random: Random, clock: Callable[[], float], load_seconds: float, staged: dict[int, Ints]
    ) -> None:
        self.random, self.clock, self.load_seconds = random, clock, load_seconds
        self.known: dict[bytes, Ints] = {}
        """By key, the digests of its unit."""
        self.open: dict[int, OpenLoad] = {}
        """Loads that somebody waits for."""
        self.staged = staged
        self.fates: list[Fate] = []
        """Of loads begun since somebody asked."""
        self.has_less: set[int] = set()
        """Loads that failed, and of which less may come."""
        self._late: list[OpenLoad] = []

    def find(self, keys: Sequence[bytes], ends: Ends) -> Found:
        del ends
        return Found(next((place for place, key in enumerate(keys) if key not in self.known), len(keys)))

    def begin(self, load: Load) -> None:
        now, fate = self.clock(), self.random.choice(list(Fate))
        delay = self.load_seconds + 2 if fate is Fate.LATE else float(self.random.randint(0, 4))
        self.open[load.number] = OpenLoad(load, fate, now, now + delay)
        self.fates.append(fate)

    def cancel(self, number: int) -> None:
        self.staged.pop(number, None)
        load = self.open.pop(number, None)
        if load is not None and load.fate is not Fate.LOST:
            self._late.append(load)

    def answers(self) -> Sequence[Answer]:
        now = self.clock()
        due = [one for one in self.open.values() if one.due <= now and one.fate is not Fate.LOST]
        for one in due:
            del self.open[one.load.number]
            if one.fate is Fate.DONE:
                self.staged[one.load.number] = np.concatenate([self.known[key] for key in one.load.keys])[
                    : one.load.tokens
                ]
        for one in [one for one in self._late if one.due <= now]:
            self._late.remove(one)
            due.append(one)
        self.has_less.update(one.load.number for one in due if one.fate is Fate.LESS)
        return [
            Answer(one.load.number, one.fate in (Fate.DONE, Fate.LATE), "lost", has_less=one.fate is Fate.LESS)
            for one in due
        ]

    def learn(self, keys: Sequence[bytes], digests: Ints, unit: int) -> None:
        """Keeps whole units of what a request computed; what it has already stays as it is."""
        for place, key in enumerate(keys[: len(digests) // unit]):
            self.known.setdefault(key, digests[place * unit : (place + 1) * unit])

    def take_fates(self) -> list[Fate]:
        taken, self.fates = self.fates, []
        return taken

    def check_empty(self) -> None:
        """After the last request nobody waits for a load, and what was staged has landed or was given up."""
        for what, own in (("loads are open", self.open), ("loads are staged", self.staged)):
            if own:
                raise Violation(f"after the last request {len(own)} {what} in the tier")

    def check_deadlines(self) -> None:
        for one in self.open.values():
            if self.clock() > one.begun + self.load_seconds + 1:
                raise Violation(f"request {one.load.request} still waits for load {one.load.number} past its deadline")
