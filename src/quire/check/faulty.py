"""A tier that fails, answers late or never, as drawn from a seed. What it brings back is what the pages held when they
were stored: a page that was read too late shows when it comes back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from random import Random

import numpy as np

from quire.check.contents import POISON
from quire.check.definitions import Ints, Violation, is_fixed
from quire.core.tier import Answer, Load, Place, Store, TransferDone, TransferFailed, TransferIncomplete
from quire.plan.plan import Plan
from quire.plan.records import Records, Span, boundary_name, unit_name
from quire.tiers.in_memory import NEVER, InMemoryStore, Transfer

ACCEPT_RATE = 0.8
"""How often there is room for a record."""


class Fate(str, Enum):
    """How a load ends."""

    DONE = "load done"
    FAILED = "load failed"
    LATE = "load late"
    LOST = "load lost"
    LESS = "load has less"
    """It fails, and the tier may bring fewer tokens."""


class Fates:
    """Draws how loads end, and notes it: for the coverage, and for the law of loads."""

    def __init__(self, random: Random, load_seconds: float) -> None:
        self._random, self._load_seconds = random, load_seconds
        self.drawn: list[Fate] = []
        """Since they were last taken."""
        self.has_less: set[int] = set()
        """Loads that failed, and of which less may come."""

    def draw(self, transfer: Transfer) -> Transfer:
        number, fate = transfer.load.number, self._random.choice(list(Fate))
        delay = self._load_seconds + 2 if fate is Fate.LATE else float(self._random.randint(0, 4))
        self.drawn.append(fate)
        answer: Answer = TransferDone(number)
        if fate not in (Fate.DONE, Fate.LATE):
            answer = (TransferIncomplete if fate is Fate.LESS else TransferFailed)(number, "lost")
        return replace(transfer, answer=answer, due=NEVER if fate is Fate.LOST else transfer.begun + delay)

    def note(self, answers: Sequence[Answer]) -> Sequence[Answer]:
        self.has_less.update(one.number for one in answers if isinstance(one, TransferIncomplete))
        return answers

    def take(self) -> list[Fate]:
        taken = list(self.drawn)
        self.drawn.clear()
        return taken


@dataclass(frozen=True, slots=True, eq=False)
class Brought:
    """What pages of one kind held when they were stored, to be put where the row has them now."""

    span: Span
    slots: Ints
    held_tokens: int


class FaultyTier(InMemoryStore):
    """Has what steps stored, or prompts from earlier times. It refuses records and drops them, and its loads fail."""

    def __init__(
        self, random: Random, clock: Callable[[], float], load_seconds: float, plan: Plan, *, learns: bool = False
    ) -> None:
        """`learns`: it is taught prompts from earlier times; otherwise steps store in it."""
        super().__init__(Records(plan), 0, clock)
        self.random, self.fates, self.learns = random, Fates(random, load_seconds), learns
        self._slots: dict[bytes, list[Ints]] = {}
        """By a record's name: what its pages held, span by span."""

    def transfer(self, load: Load) -> Transfer:
        return self.fates.draw(super().transfer(load))

    def answers(self) -> Sequence[Answer]:
        return self.fates.note(super().answers())

    def end(self, transfer: Transfer) -> Answer:
        """A load brings nothing that was dropped since it began."""
        load, wanted = transfer.load, self.records.wanted(transfer.load)
        if isinstance(transfer.answer, TransferDone) and any(name not in self.cache for name, _ in wanted):
            transfer = replace(transfer, answer=TransferIncomplete(load.number, "dropped"))
        return super().end(transfer)

    def bring(self, number: int) -> list[Brought]:
        """A step copies what a load has staged."""
        load = self.staged[number].load
        self.note_landed(number)
        return [
            Brought(span, slots, load.held_tokens * span.plan.kind.grows)
            for (name, _), spans in zip(self.records.wanted(load), self.records.contents(load), strict=True)
            for span, slots in zip(spans, self._slots[name], strict=True)
        ]

    # ── what it has ───────────────────────────────────────────────────────

    def renew(self, names: Sequence[bytes]) -> list[int]:
        """Also asks for what is on its way: a record may be stored twice."""
        return [place for place, name in enumerate(names) if name not in self.cache]

    def accept(self, name: bytes, size_bytes: int) -> Place | None:
        """Records take no blocks, so that none is evicted."""
        assert size_bytes >= 0
        return None if self.random.random() > ACCEPT_RATE else super().accept(name, 0)

    def keep(self, store: Store, slots: list[Ints]) -> None:
        """A step has copied a record."""
        self._slots[self.coming[store.place.number].name] = slots
        self.note_stored(store.place.number)

    def learn(self, keys: Sequence[bytes], digests: Ints) -> None:
        """Keeps whole units of a prompt, and a boundary at each; what it has already stays as it is."""
        unit = self.records.unit_tokens
        for place, key in enumerate(keys[: len(digests) // unit] if self.learns else ()):
            if unit_name(key) not in self.cache:
                own = digests[: (place + 1) * unit]
                self._add(unit_name(key), self.records.in_unit(place), own)
                self._add(boundary_name(key), self.records.at(len(own)), own)

    def _add(self, name: bytes, spans: list[Span], digests: Ints) -> None:
        self._slots[name] = [_slots(span, digests) for span in spans]
        record = self.cache.reserve(name, 0)
        assert record is not None, "it takes no blocks"
        self.cache.publish(record)
        self.cache.unpin(record)

    def forget(self, scope: bytes) -> None:
        """Is slow to forget: what is on its way is stored all the same."""
        self.cache.forget(scope)

    def seconds_to_load(self, size_bytes: int) -> float | None:
        """A load may cost anything, compared with steps that are not measured."""
        return self.random.choice((None, float(size_bytes)))

    def names(self) -> set[bytes]:
        """Of records that can be loaded, or will be."""
        return {*self.cache._records, *(record.name for record in self.coming.values())}

    def check_empty(self) -> None:
        """After the last request no load is awaited, and what was staged has landed or was given up."""
        awaited = [one for one in self.transfers.values() if one.is_awaited]
        for what, own in (("open", len(awaited)), ("staged", len(self.staged))):
            if own:
                raise Violation(f"after the last request {own} loads are {what} in the tier")


def _slots(span: Span, digests: Ints) -> Ints:
    """What pages of a kind hold after these tokens, page by page, group by group."""
    last, tokens = len(digests) - 1, span.plan.page_tokens
    places = span.logical[:, None] * tokens + np.arange(tokens)
    if is_fixed(span.plan.kind):
        places = np.full_like(places, last)
    own = np.where(places <= last, digests[np.minimum(places, last)], POISON)[:, None]
    return np.where(own > 0, own + np.arange(span.plan.groups)[:, None], own).reshape(-1, tokens)
