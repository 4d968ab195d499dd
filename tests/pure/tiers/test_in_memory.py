"""The reference tier: it says what a stack says, and a variation decides how and when a load ends."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from quire.core.tier import Load, TransferDone, TransferFailed, TransferIncomplete
from quire.plan.records import Records, boundary_name, size_bytes, unit_name
from quire.tiers.in_memory import NEVER, InMemoryStore, InMemoryTier, Transfer
from quire.tiers.stack import Stack
from scenes_of_tiers import LAYOUT, Bytes, small_plan

BLOCKS = 128


class Both:
    """A stack without tiers below and the reference tier, asked for the same and compared."""

    def __init__(self, records: Records, random: Random) -> None:
        self.records, self.random = records, random
        self.stack = Stack(records, Bytes(BLOCKS, records.block_bytes), [], LAYOUT, lambda: 0.0)
        self.reference = InMemoryStore(records, BLOCKS, lambda: 0.0)
        self.loads = 0

    def keys(self) -> list[bytes]:
        """A prefix of one of two talks in each of two scopes."""
        scope, talk = bytes([self.random.randrange(2)] * 8), self.random.randrange(2)
        return [scope + bytes([talk, unit] * 12) for unit in range(self.random.randint(1, 6))]

    def store(self) -> None:
        keys = self.keys()
        names = [boundary_name(keys[-1])] * self.records.has_boundaries
        names += [unit_name(key) for key in keys] * self.records.has_units
        lacking = self.stack.renew(names)
        assert self.reference.renew(names) == lacking
        for name in [names[place] for place in lacking]:
            unit_tokens = self.records.unit_tokens
            boundary = size_bytes(self.records.at(len(keys) * unit_tokens))
            self._store(name, boundary if name.startswith(b"b") else self.records.unit_bytes)

    def _store(self, name: bytes, size: int) -> None:
        place, other = self.stack.accept(name, size), self.reference.accept(name, size)
        assert place is not None, "there is room for all of them"
        assert other is not None
        assert (place.number, len(place.blocks)) == (other.number, len(other.blocks))
        if self.random.random() < 0.05:
            self.forget()
        is_copied = self.random.random() < 0.8
        for tier in (self.stack, self.reference):
            (tier.note_stored if is_copied else tier.give_up)(place.number)

    def load(self) -> None:
        keys = self.keys()
        found = self.stack.find(keys, lambda _: ())
        assert self.reference.find(keys, lambda _: ()) == found
        if not found.units:
            return
        load = Load(self.loads, "request", tuple(keys[: found.units]), found.units * self.records.unit_tokens)
        self.loads += 1
        is_cancelled = self.random.random() < 0.3
        for tier in (self.stack, self.reference):
            tier.begin(load)
        if self.random.random() < 0.3:
            self.forget()
        for tier in (self.stack, self.reference):
            assert tier.answers() == [TransferDone(load.number)]
        if not is_cancelled:
            self.stack.staged_load(load.number)
        for tier in (self.stack, self.reference):
            (tier.cancel if is_cancelled else tier.note_landed)(load.number)

    def forget(self) -> None:
        scope = self.random.choice((b"", bytes(8), bytes([1] * 8)))
        for tier in (self.stack, self.reference):
            tier.forget(scope)


@pytest.mark.law
@pytest.mark.parametrize("names", [["full"], ["full", "window"], ["state"]], ids=" ".join)
@pytest.mark.parametrize("seed", range(5))
def test_it_finds_lacks_accepts_and_brings_what_a_stack_does(names: list[str], seed: int) -> None:
    """Whatever is stored, given up, loaded, cancelled and forgotten: while nothing is evicted both say the same, and
    hold the same."""
    both = Both(Records(small_plan(names)), Random(f"{names} {seed}"))
    for _ in range(300):
        both.random.choice((both.store, both.load, both.load))()
        cache = both.stack.held.cache
        assert set(cache._records) == set(both.reference.cache._records)
        assert cache.free_blocks == both.reference.cache.free_blocks
    assert both.loads > 20
    assert not any(record.pins for record in both.reference.cache._records.values())


def test_a_load_ends_when_it_is_due_or_when_its_user_answers() -> None:
    now = 0.0
    tier = InMemoryTier(lambda: now, units=2, seconds=5.0)
    loads = [Load(number, "request", (b"a", b"b"), 16) for number in range(3)]
    for load in loads:
        tier.begin(load)
    assert tier.answers() == []
    tier.answer(TransferFailed(1, "on fire"))
    assert tier.answers() == [TransferFailed(1, "on fire")]
    now = 5.0
    tier.cancel(2)
    assert tier.answers() == [TransferDone(0), TransferDone(2)], "also those that were cancelled"
    assert not tier.transfers


class Slow(InMemoryStore):
    """Nothing that it begins ever ends by itself."""

    def transfer(self, load: Load) -> Transfer:
        return replace(super().transfer(load), due=NEVER)


def test_a_record_that_a_load_uses_is_not_evicted_before_the_load_ends_though_it_was_cancelled() -> None:
    records = Records(small_plan(["full"]))
    tier = Slow(records, 1, lambda: 0.0)
    place = tier.accept(unit_name(b"a" * 32), records.unit_bytes)
    assert place is not None
    tier.note_stored(place.number)
    tier.begin(Load(0, "request", (b"a" * 32,), records.unit_tokens))
    tier.cancel(0)
    assert tier.accept(unit_name(b"b" * 32), records.unit_bytes) is None
    tier.answer(TransferDone(0))
    assert tier.answers() == [TransferDone(0)]
    assert tier.accept(unit_name(b"b" * 32), records.unit_bytes) is not None


def test_a_load_of_which_a_record_is_gone_is_incomplete() -> None:
    records = Records(small_plan(["full"]))
    tier = InMemoryStore(records, 1, lambda: 0.0)
    tier.begin(Load(0, "request", (b"a" * 32,), records.unit_tokens))
    assert tier.answers() == [TransferIncomplete(0, "a record is gone")]
