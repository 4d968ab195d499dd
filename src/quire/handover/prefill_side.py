"""Prompts that this engine computes for others: ordinary requests of one token, whose records are held for a while.

    a prompt comes ──▶ submitted ──▶ ended, and its records are in host memory ──▶ held: an offer
                                 └─▶ refused, cancelled, late, no room for its records ──▶ a reason

Threads of the wire leave orders and wait; everything else happens in the engine's thread, once per turn of its loop.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter, deque
from collections.abc import Callable

from quire.cache.keys import keys_of
from quire.core.errors import QuireError
from quire.core.peer import Errand, Offer
from quire.core.request import Request, Tokens
from quire.engine.engine import Engine, Stream
from quire.plan.plan import Plan
from quire.plan.records import Records, boundary_name, size_bytes, unit_name
from quire.tiers.shelf import Record
from quire.tiers.stack import Stack

HELD_SHARE = 0.5
"""Of host memory, at most, for records that wait to be fetched."""


class Prefills:
    def __init__(self, plan: Plan, engine: Engine, stack: Stack, wake: Callable[[], None] = lambda: None) -> None:
        self.counters: Counter[str] = Counter()
        """Prompts, for metrics: offered, not_offered."""
        self.turned_at = time.monotonic()
        self._records, self._engine, self._stack, self._wake = Records(plan), engine, stack, wake
        self._numbers = itertools.count()
        self._new: deque[Errand] = deque()
        self._given_up: deque[Errand] = deque()
        self._running: dict[str, tuple[Errand, Stream]] = {}
        self._held: dict[str, list[Record]] = {}

    @property
    def held_blocks(self) -> int:
        return len({block for records in self._held.values() for record in records for block in record.blocks})

    def __len__(self) -> int:
        """Prompts that are under way or held."""
        return len(self._running) + len(self._held) + len(self._new)

    # ── from threads ──────────────────────────────────────────────────────

    def ask(self, scope: str, prompt: Tokens, seconds: float) -> Errand:
        errand = Errand(f"peer-{next(self._numbers)}", scope, prompt, seconds)
        self._new.append(errand)
        self._wake()
        return errand

    def give_up(self, errand: Errand) -> None:
        self._given_up.append(errand)
        self._wake()

    # ── in the engine's thread ────────────────────────────────────────────

    def turn(self) -> None:
        self.turned_at = time.monotonic()
        while self._new:
            self._begin(self._new.popleft())
        while self._given_up:
            self._end(self._given_up.popleft())
        for errand, stream in list(self._running.values()):
            if stream.ended is not None:
                self._settle(errand, stream)

    def _begin(self, errand: Errand) -> None:
        needed, most = self._needed_blocks(errand), int(HELD_SHARE * self._stack.blocks)
        if needed > most:
            told = f"its records take {needed:,} blocks of host memory, and {most:,} at most may wait to be fetched"
            self._answer(errand, f"{told}: raise --host-memory")
            return
        deadline = self._engine.clock() + errand.seconds
        request = Request(errand.name, errand.prompt, 1, scope=errand.scope, deadline=deadline)
        try:
            self._running[errand.name] = (errand, self._engine.submit(request))
        except QuireError as error:
            self._answer(errand, str(error))

    def _end(self, errand: Errand) -> None:
        if self._running.pop(errand.name, None) is not None:
            self._engine.cancel(errand.name)
        self._stack.let_go(self._held.pop(errand.name, []))

    def _settle(self, errand: Errand, stream: Stream) -> None:
        """It was computed, or not; its records are there, on their way, or nowhere."""
        names = self._names(errand)
        if not len(stream.tokens()):
            self._answer(errand, f"it ended before it was computed: {stream.ending.value if stream.ending else ''}")
        elif self._stack.renew(names):  # neither there nor on their way
            self._answer(errand, "host memory has no room for its records: raise --host-memory")
        elif (records := self._stack.hold(names)) is not None:
            self._offer(errand, records)

    def _offer(self, errand: Errand, records: list[Record]) -> None:
        self._held[errand.name] = records
        if self.held_blocks > HELD_SHARE * self._stack.blocks:
            self._stack.let_go(self._held.pop(errand.name))
            self._answer(errand, "host memory is full of prompts that wait to be fetched: raise --host-memory")
            return
        parts = tuple(tuple(self._stack.parts(record)) for record in records)
        errand.offer = Offer(len(errand.prompt) - 1, parts)
        self._answer(errand, "")

    def _answer(self, errand: Errand, reason: str) -> None:
        self._running.pop(errand.name, None)
        self.counters["not_offered" if reason else "offered"] += 1
        errand.reason = reason
        errand.is_over.set()

    def _needed_blocks(self, errand: Errand) -> int:
        """What would be held for it."""
        records, units = self._records, (len(errand.prompt) - 1) // self._records.unit_tokens
        boundary = size_bytes(records.at(units * records.unit_tokens)) if records.has_boundaries and units else 0
        return units * records.blocks(records.unit_bytes) + records.blocks(boundary)

    def _names(self, errand: Errand) -> list[bytes]:
        root = self._engine.scheduler.reuse.root_of(errand.scope)
        keys = keys_of(root, errand.prompt[:-1], self._records.unit_tokens)
        units = [unit_name(key) for key in keys] if self._records.has_units else []
        return [*units, boundary_name(keys[-1])] if self._records.has_boundaries else units
