"""The real stack of tiers under an engine: few blocks of host memory, unreliable stores below, steered threads.

pages ──step──▶ blocks ──thread──▶ store        digests go the way that bytes go, so what comes back of another
pages ◀──step── blocks ◀──thread── store        record, of half a transfer or of a forgotten scope shows up
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence, Sized
from random import Random

import numpy as np

from quire.check.definitions import Ints, Violation
from quire.check.faulty import Brought, Fate, Fates
from quire.check.shaky import ShakyStore
from quire.check.steering import Steering
from quire.core.connector import Layout
from quire.core.tier import SCOPE_BYTES, Answer, Blocks, Load, Place, Store
from quire.plan.plan import Plan
from quire.plan.records import Records, Span
from quire.tiers.host_cache import HostCache, Record
from quire.tiers.stack import Stack

DIGEST_BYTES = 8


class Payload:
    """Host memory as a stack sees it. A block holds the digests of its pages, not all their bytes."""

    def __init__(self, blocks: int, block_bytes: int, plan: Plan) -> None:
        kinds = [kind for stage in plan.stages for kind in stage.kinds]
        share = max(DIGEST_BYTES * kind.page_tokens / kind.page_bytes for kind in kinds)
        self.blocks = blocks
        self.bytes = np.zeros((blocks, int(block_bytes * share) + DIGEST_BYTES), dtype=np.uint8)

    def parts(self, blocks: Sequence[int], size_bytes: int) -> list[memoryview]:
        del size_bytes
        return [memoryview(self.bytes[block]) for block in blocks]

    def write(self, blocks: Blocks, digests: Ints) -> None:
        data, each = digests.astype("<i8").tobytes(), self.bytes.shape[1]
        for place, block in enumerate(blocks):
            piece = data[place * each : (place + 1) * each]
            self.bytes[block, : len(piece)] = np.frombuffer(piece, dtype=np.uint8)

    def read(self, blocks: Blocks, count: int) -> Ints:
        data = self.bytes[list(blocks)].ravel()[: count * DIGEST_BYTES].tobytes()
        return np.frombuffer(data, dtype="<i8").astype(np.int64)


class HostTier:
    """Drives a stack through its ports, and keeps books of its own on what it may bring back."""

    def __init__(self, random: Random, clock: Callable[[], float], load_seconds: float, plan: Plan) -> None:
        self.steering, self.random = Steering(clock), random
        self.fates = Fates(random, load_seconds)
        self._records = Records(plan)
        self._payload = Payload(random.choice((6, 20, 60, 200)), self._records.block_bytes, plan)
        stores = [
            ShakyStore(f"store {number}", random, self.steering, load_seconds, self.fates.drawn)
            for number in range(random.choice((0, 1, 1, 2)))
        ]
        layout = Layout("c" * 64, plan.reuse_unit_tokens, 1, 1, "[]")
        self.is_late = random.random() < 0.5
        """Copies go on alongside the steps."""
        self._given: dict[bytes, int] = {}
        """By a record's name: when it was last given to us; by a scope: when that was last forgotten. As counted."""
        self._forgotten: dict[bytes, int] = {}
        self._counted: Counter[str] = Counter()
        """Records, as the stack's own counters should have them."""
        self._in_vain: set[int] = set()
        """Loads that need a record which was dropped."""
        self._now = 0
        threads, is_late = self.steering.threads, self.is_late
        stack = Stack(self._records, self._payload, stores, layout, clock, lands_later=is_late, threads=threads)
        self.stack = stack
        self.find, self.cancel, self.seconds_to_load = stack.find, stack.cancel, stack.seconds_to_load
        self.renew, self.give_up = stack.renew, stack.give_up
        self.lease, self.end_lease, self.is_stored = stack.lease, stack.end_lease, stack.is_stored
        self.lease_bytes_left = stack.lease_bytes_left

    # ── what a step copies ────────────────────────────────────────────────

    def keep(self, store: Store, slots: list[Ints]) -> None:
        """Pages are copied to their blocks at once; where copies go on alongside the steps, that is reported later."""
        self._payload.write(
            store.place.blocks, np.concatenate([own.ravel() for own in slots] or [np.empty(0, np.int64)])
        )
        self._counted["stored"] += 1
        if self.is_late:
            self.stack.follow(self._wait, stored=[store.place.number])
        else:
            self.stack.note_stored(store.place.number)

    def bring(self, number: int) -> list[Brought]:
        """What a load has staged, span by span."""
        if number in self._in_vain:
            raise Violation(f"load {number} brings a record that was dropped, and was not given again before it began")
        staged, brought = self.stack.staged_load(number), []
        for blocks, spans in zip(staged.records, self._records.contents(staged.load), strict=True):
            brought += self._spans(blocks, spans, staged.load.held_tokens)
        if self.is_late:
            self.stack.follow(self._wait, landed=[number])
        else:
            self.stack.note_landed(number)
        self.fates.drawn.append(Fate.DONE)
        return brought

    def _spans(self, blocks: Blocks, spans: list[Span], held_tokens: int) -> list[Brought]:
        shapes = [(len(span.logical) * span.plan.groups, span.plan.page_tokens) for span in spans]
        digests = self._payload.read(blocks, sum(pages * tokens for pages, tokens in shapes))
        brought, begin = [], 0
        for span, (pages, tokens) in zip(spans, shapes, strict=True):
            own = digests[begin : begin + pages * tokens].reshape(pages, tokens)
            brought.append(Brought(span, own, held_tokens * span.plan.kind.grows))
            begin += pages * tokens
        return brought

    def _wait(self) -> float:
        self.steering.pause(self.random.randint(0, 3))
        return 0.0

    # ── what may not be brought back ───────────────────────────────────────

    def accept(self, name: bytes, size_bytes: int) -> Place | None:
        place = self.stack.accept(name, size_bytes)
        self._counted["host_full"] += place is None
        if place is not None:
            self._now += 1
            self._given[name] = self._now
        return place

    def forget(self, scope: bytes) -> None:
        self._now += 1
        self._forgotten[scope] = self._now
        self.stack.forget(scope)

    def begin(self, load: Load) -> None:
        """A request may have asked before the cache was dropped: then it gets nothing."""
        everyone = self._forgotten.get(b"", 0)
        for name, _ in self._records.wanted(load):
            dropped = max(everyone, self._forgotten.get(name[1 : 1 + SCOPE_BYTES], 0))
            if self._given.get(name, 0) <= dropped:
                self._in_vain.add(load.number)
        self.stack.begin(load)

    def answers(self) -> Sequence[Answer]:
        return self.fates.note(self.stack.answers())

    def squeeze(self) -> None:
        """Host memory forgets everything that no transfer needs: tiers below still have it."""
        evict_unpinned(self.stack.held.cache)

    # ── the books of host memory ──────────────────────────────────────────

    def check_blocks(self) -> None:
        """Each block is free or belongs to one record; all are accounted for where no thread has one in hand."""
        cache = self.stack.held.cache
        blocks = [*cache._free, *(block for record in self._all_records() for block in record.blocks)]
        if len(set(blocks)) != len(blocks):
            raise Violation("a block of host memory belongs to two records, or is free and does not")
        if self.steering.is_idle and len(blocks) != cache.blocks:
            raise Violation(f"{cache.blocks - len(blocks)} blocks of host memory belong to no record and are not free")

    def _all_records(self) -> list[Record]:
        stack = self.stack
        found = [*stack.held.cache._records.values(), *(one.record for one in stack.stores._open.values())]
        found += [record for opened in stack.loads._open.values() for record in opened.records]
        found += [record for below in stack.below for record in below._due]
        return list({id(record): record for record in found}.values())

    def names(self) -> set[bytes]:
        """Of records that can be loaded, or will be."""
        coming = {one.record.name for one in self.stack.stores._open.values() if not one.record.is_forgotten}
        return {*self.stack.held.cache._records, *coming}

    def check_empty(self) -> None:
        """After the last request, and when every transfer has ended: nothing is pinned, promised or on its way."""
        stack = self.stack
        books: dict[str, Sized] = {
            "loads": stack.loads,
            "records to come": stack.stores,
            "records due below": [record for below in stack.below for record in below._due],
            "blocks pinned for tiers below": range(sum(below.pinned_blocks for below in stack.below)),
            "leased records": stack.held.cache.leased,
            "pinned records": [record for record in stack.held.cache._records.values() if record.pins],
        }
        for what, own in books.items():
            if len(own):
                raise Violation(f"after the last request {len(own)} {what} are left in host memory")
        for what, count in self._counted.items():
            if stack.counters[what] != count:
                raise Violation(f"{count} records were {what}, the counter says {stack.counters[what]}")
        self.check_blocks()


def evict_unpinned(cache: HostCache) -> None:
    """Host memory needs all the blocks that it can get."""
    fillers = [cache.reserve(b"filler", 1) for _ in range(cache.blocks)]
    for filler in fillers:
        if filler is not None:
            cache.unpin(filler)
