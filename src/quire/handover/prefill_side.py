"""Prompts that this engine computes for others: ordinary requests of one token, whose records are held for a while.

    a prompt arrives ▶ submitted ──▶ ended, and its records are in host memory ──▶ held: an offer
                                 └─▶ refused, cancelled, late, no room for its records ──▶ a reason

Threads of the wire add jobs and wait; everything else happens in the engine's thread, once per iteration of its loop.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter, deque
from collections.abc import Callable

from quire.core.errors import QuireError
from quire.core.request import Request, Tokens
from quire.engine.engine import Engine, Stream
from quire.handover.peer import Offer, PrefillJob, PromptRefused
from quire.plan.plan import Plan
from quire.plan.records import Records, boundary_name, size_bytes, unit_name
from quire.prefix.keys import keys_of
from quire.tiers.host_cache import Record
from quire.tiers.stack import Stack

HELD_SHARE = 0.5
"""The most of host memory for records that wait to be fetched."""


class Prefills:
    def __init__(self, plan: Plan, engine: Engine, stack: Stack, wake: Callable[[], None] = lambda: None) -> None:
        self.counters: Counter[str] = Counter()
        """Prompts, for metrics: offered, not_offered."""
        self.turned_at = time.monotonic()
        self._records, self._engine, self._stack, self._wake = Records(plan), engine, stack, wake
        self._numbers = itertools.count()
        self._new: deque[PrefillJob] = deque()
        self._given_up: deque[PrefillJob] = deque()
        self._running: dict[str, tuple[PrefillJob, Stream]] = {}
        self._held: dict[str, list[Record]] = {}

    @property
    def held_blocks(self) -> int:
        return len({block for records in self._held.values() for record in records for block in record.blocks})

    def __len__(self) -> int:
        """Prompts that are being computed or held."""
        return len(self._running) + len(self._held) + len(self._new)

    # ── from threads ──────────────────────────────────────────────────────

    def ask(self, scope: str, prompt: Tokens, seconds: float) -> PrefillJob:
        job = PrefillJob(f"peer-{next(self._numbers)}", scope, prompt, seconds)
        self._new.append(job)
        self._wake()
        return job

    def give_up(self, job: PrefillJob) -> None:
        self._given_up.append(job)
        self._wake()

    # ── in the engine's thread ────────────────────────────────────────────

    def turn(self) -> None:
        self.turned_at = time.monotonic()
        while self._new:
            self._begin(self._new.popleft())
        while self._given_up:
            self._end(self._given_up.popleft())
        for job, stream in list(self._running.values()):
            if stream.ended is not None:
                self._settle(job, stream)

    def _begin(self, job: PrefillJob) -> None:
        needed, most = self._needed_blocks(job), int(HELD_SHARE * self._stack.held.cache.blocks)
        if needed > most:
            told = f"its records take {needed:,} blocks of host memory, and {most:,} at most may wait to be fetched"
            self._answer(job, PromptRefused(f"{told}: raise --host-memory"))
            return
        deadline = self._engine.clock() + job.seconds
        request = Request(job.name, job.prompt, 1, scope=job.scope, deadline=deadline)
        try:
            self._running[job.name] = (job, self._engine.submit(request))
        except QuireError as error:
            self._answer(job, PromptRefused(str(error)))

    def _end(self, job: PrefillJob) -> None:
        if self._running.pop(job.name, None) is not None:
            self._engine.cancel(job.name)
        self._stack.held.let_go(self._held.pop(job.name, []))

    def _settle(self, job: PrefillJob, stream: Stream) -> None:
        """Answers a job whose request has ended: its records are in host memory, on their way there, or missing."""
        names = self._names(job)
        if not len(stream.tokens()):
            ending = stream.ending.value if stream.ending else ""
            self._answer(job, PromptRefused(f"it ended before it was computed: {ending}"))
        elif self._stack.renew(names):  # neither in host memory nor on their way
            self._answer(job, PromptRefused("host memory has no room for its records: raise --host-memory"))
        elif (records := self._stack.held.hold(names)) is not None:
            self._offer(job, records)

    def _offer(self, job: PrefillJob, records: list[Record]) -> None:
        self._held[job.name] = records
        if self.held_blocks > HELD_SHARE * self._stack.held.cache.blocks:
            self._stack.held.let_go(self._held.pop(job.name))
            full = "host memory is full of prompts that wait to be fetched: raise --host-memory"
            self._answer(job, PromptRefused(full))
            return
        parts = tuple(tuple(self._stack.held.parts(record)) for record in records)
        self._answer(job, Offer(len(job.prompt) - 1, parts))

    def _answer(self, job: PrefillJob, answer: Offer | PromptRefused) -> None:
        self._running.pop(job.name, None)
        self.counters["offered" if isinstance(answer, Offer) else "not_offered"] += 1
        job.answer = answer
        job.is_over.set()

    def _needed_blocks(self, job: PrefillJob) -> int:
        """Blocks that would be held for it."""
        records, units = self._records, (len(job.prompt) - 1) // self._records.unit_tokens
        boundary = size_bytes(records.at(units * records.unit_tokens)) if records.has_boundaries and units else 0
        return units * records.blocks(records.unit_bytes) + records.blocks(boundary)

    def _names(self, job: PrefillJob) -> list[bytes]:
        root = self._engine.scheduler.reuse.root_of(job.scope)
        keys = keys_of(root, job.prompt[:-1], self._records.unit_tokens)
        units = [unit_name(key) for key in keys] if self._records.has_units else []
        return [*units, boundary_name(keys[-1])] if self._records.has_boundaries else units
