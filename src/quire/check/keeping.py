"""A tier that has what steps stored in it, nothing else: a page that was read too late shows when it comes back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from quire.check.definitions import Ints, Violation
from quire.check.doubles import Fate, FaultyTier
from quire.core.tier import Answer, Ends, Found, Load, Place, Store, is_of
from quire.plan.plan import Plan
from quire.plan.records import Records, Span, boundary_name, unit_name

ACCEPT_RATE = 0.8
"""Else there is no room for a record."""


@dataclass(frozen=True, slots=True, eq=False)
class Brought:
    """What pages of one kind held when they were stored, to be put where the row has them now."""

    span: Span
    slots: Ints
    held_tokens: int


class KeepingTier(FaultyTier):
    """Forgets, refuses, loses and comes late as the other one does."""

    def __init__(self, random: Random, clock: Callable[[], float], load_seconds: float, plan: Plan) -> None:
        super().__init__(random, clock, load_seconds, {})
        self.brought: dict[int, list[Brought]] = {}
        """By load."""
        self._records = Records(plan)
        self._kept: dict[bytes, list[Ints]] = {}
        """By a record's name: what its pages held, span by span."""
        self._coming: list[bytes] = []
        """By number: names of records that were accepted."""

    def find(self, keys: Sequence[bytes], ends: Ends) -> Found:
        return self._records.greatest(keys, ends, lambda names: [name in self._kept for name in names])

    def renew(self, names: Sequence[bytes]) -> list[int]:
        return [place for place, name in enumerate(names) if name not in self._kept]

    def accept(self, name: bytes, size_bytes: int) -> Place | None:
        assert size_bytes >= 0
        if self.random.random() > ACCEPT_RATE:
            return None
        self._coming.append(name)
        return Place(len(self._coming) - 1, ())

    def give_up(self, number: int) -> None:
        """It was kept if it was copied, and holds nothing until then."""

    def forget(self, scope: bytes) -> None:
        for name in [name for name in self._kept if is_of(name, scope)]:
            del self._kept[name]

    def seconds_to_load(self, size_bytes: int) -> float | None:
        """A load may cost anything, beside steps that nobody measures."""
        return self.random.choice((None, float(size_bytes)))

    def keep(self, store: Store, slots: list[Ints]) -> None:
        """A step has copied a record."""
        self._kept[self._coming[store.place.number]] = slots

    def bring(self, number: int) -> list[Brought]:
        """A step copies what a load has staged."""
        self.staged.pop(number)
        return self.brought.pop(number)

    def cancel(self, number: int) -> None:
        self.brought.pop(number, None)
        super().cancel(number)

    def check_empty(self) -> None:
        super().check_empty()
        if self.brought:
            raise Violation(f"after the last request {len(self.brought)} loads are staged in the tier")

    def answers(self) -> Sequence[Answer]:
        now = self.clock()
        for one in self.open.values():
            if one.due > now or one.fate is not Fate.DONE:
                continue
            if all(name in self._kept for name, _ in self._records.wanted(one.load)):
                self.brought[one.load.number] = self._bring(one.load)
            else:
                one.fate = Fate.LESS  # it was dropped meanwhile
        self.known = {key: np.empty(0, dtype=np.int64) for one in self.open.values() for key in one.load.keys}
        return super().answers()

    def _bring(self, load: Load) -> list[Brought]:
        first = load.held_tokens // self._records.unit_tokens
        brought = []
        for unit in range(first, len(load.keys)) if self._records.has_units else ():
            spans, slots = self._records.in_unit(unit), self._kept[unit_name(load.keys[unit])]
            brought += [Brought(span, own, load.held_tokens) for span, own in zip(spans, slots, strict=True)]
        if self._records.has_boundaries:
            spans, slots = self._records.at(load.tokens), self._kept[boundary_name(load.end or load.keys[-1])]
            held = [load.held_tokens * span.plan.kind.grows for span in spans]
            brought += [Brought(*one) for one in zip(spans, slots, held, strict=True)]
        return brought

    def learn(self, keys: Sequence[bytes], digests: Ints, unit: int) -> None:
        """It is told nothing: what it has, steps brought."""
