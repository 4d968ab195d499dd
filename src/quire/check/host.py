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
from quire.check.doubles import Fate
from quire.check.keeping import Brought
from quire.check.shaky import ShakyStore
from quire.check.steering import Steering
from quire.core.connector import Layout
from quire.core.tier import SCOPE_BYTES, Answer, Blocks, Load, Place, Store
from quire.plan.plan import Plan
from quire.plan.records import Records, Span
from quire.tiers.shelf import Record
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


class HostTier(Stack):
    def __init__(self, random: Random, clock: Callable[[], float], load_seconds: float, plan: Plan) -> None:
        self.steering, self.random = Steering(clock), random
        self.fates: list[Fate] = []
        self.has_less: set[int] = set()
        """Loads that failed, and of which less may come."""
        self._payload = Payload(random.choice((6, 20, 60, 200)), Records(plan).block_bytes, plan)
        stores = [
            ShakyStore(f"store {number}", random, self.steering, load_seconds, self.fates)
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
        super().__init__(Records(plan), self._payload, stores, layout, clock, self.is_late, self.steering.threads)

    # ── what a step copies ────────────────────────────────────────────────

    def keep(self, store: Store, slots: list[Ints]) -> None:
        """Pages are copied to their blocks at once; where copies go on alongside the steps, that is reported later."""
        self._payload.write(
            store.place.blocks, np.concatenate([own.ravel() for own in slots] or [np.empty(0, np.int64)])
        )
        if self.is_late:
            self.follow(self._wait, stored=[store.place.number])
        else:
            self.stored(store.place.number)

    def bring(self, number: int) -> list[Brought]:
        """What a load has staged, span by span."""
        if number in self._in_vain:
            raise Violation(f"load {number} brings a record that was dropped, and was not given again before it began")
        staged = self.staged(number)
        load, records, brought = staged.load, self._records, []
        for unit, blocks in enumerate(staged.units, load.held_tokens // records.unit_tokens):
            brought += self._spans(blocks, records.in_unit(unit), load.held_tokens)
        if records.has_boundaries:
            brought += self._spans(staged.boundary, records.at(load.tokens), load.held_tokens)
        if self.is_late:
            self.follow(self._wait, landed=[number])
        else:
            self.landed(number)
        self.fates.append(Fate.DONE)
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
        place = super().accept(name, size_bytes)
        self._counted["host_full"] += place is None
        if place is not None:
            self._now += 1
            self._given[name] = self._now
        return place

    def stored(self, number: int) -> None:
        super().stored(number)
        self._counted["stored"] += 1

    def forget(self, scope: bytes) -> None:
        self._now += 1
        self._forgotten[scope] = self._now
        super().forget(scope)

    def begin(self, load: Load) -> None:
        """A request may have asked before the cache was dropped: then it gets nothing."""
        everyone = self._forgotten.get(b"", 0)
        for name, _ in self._records.wanted(load):
            dropped = max(everyone, self._forgotten.get(name[1 : 1 + SCOPE_BYTES], 0))
            if self._given.get(name, 0) <= dropped:
                self._in_vain.add(load.number)
        super().begin(load)

    def answers(self) -> Sequence[Answer]:
        answers = super().answers()
        self.has_less.update(answer.number for answer in answers if answer.has_less)
        return answers

    def take_fates(self) -> list[Fate]:
        taken = list(self.fates)
        self.fates.clear()
        return taken

    def squeeze(self) -> None:
        """Host memory forgets everything that no transfer needs: tiers below still have it."""
        fillers = [self._shelf.reserve(b"filler", 1) for _ in range(self._shelf.blocks)]
        for filler in fillers:
            if filler is not None:
                self._shelf.unpin(filler)

    # ── the books of host memory ──────────────────────────────────────────

    def check_blocks(self) -> None:
        """Each block is free or belongs to one record; all are accounted for where no thread has one in hand."""
        held = [block for record in self._all_records() for block in record.blocks]
        blocks = [*self._shelf._free, *held]
        if len(set(blocks)) != len(blocks):
            raise Violation("a block of host memory belongs to two records, or is free and does not")
        if self.steering.is_idle and len(blocks) != self._shelf.blocks:
            raise Violation(
                f"{self._shelf.blocks - len(blocks)} blocks of host memory belong to no record and are not free"
            )

    def _all_records(self) -> list[Record]:
        found = [*self._shelf._records.values(), *self._coming.values()]
        found += [record for opened in self._open.values() for record in opened.records]
        found += [record for behind in self._behind for record in behind._due]
        return list({id(record): record for record in found}.values())

    def check_empty(self) -> None:
        """After the last request, and when every transfer has ended: nothing is pinned, promised or on its way."""
        books: dict[str, Sized] = {
            "loads": self._open,
            "loads being copied": self._copying,
            "loads being landed": self._landing,
            "stores being copied": self._storing,
            "records to come": self._coming,
            "promises to tiers below": self._promised,
            "times of acceptance": self._accepted_at,
            "names to come": self._coming_names,
            "records due below": [record for behind in self._behind for record in behind._due],
            "blocks pinned for tiers below": range(sum(behind.pinned_blocks for behind in self._behind)),
            "pinned records": [record for record in self._shelf._records.values() if record.pins],
        }
        for what, own in books.items():
            if len(own):
                raise Violation(f"after the last request {len(own)} {what} are left in host memory")
        for what, count in self._counted.items():
            if self.counters[what] != count:
                raise Violation(f"{count} records were {what}, the counter says {self.counters[what]}")
        self.check_blocks()
