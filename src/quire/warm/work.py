"""Computes prompts that are expected next, while the engine has nothing else to do.

    idle engine ─▶ a chunk is submitted, launched and cancelled at once: the cache keeps what it computes
    a request   ─▶ waits for the step in flight, at most one chunk; no row, page or place in the queue is taken

A chunk is a request of its own, which exists within one call of `step` (longer only while a tier loads its first
tokens). So it is never older than a request, and nothing has to be preempted for one.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from quire.core.errors import InputError, QueueFull
from quire.core.events import Event, RequestEvent, StepLaunched
from quire.core.request import Request, Tokens
from quire.engine.engine import Engine
from quire.engine.history import Counters
from quire.prefix.keys import keys_of
from quire.warm.actions import act, chunk_ended, turn_ended, uncounted
from quire.warm.pace import Pace

NAME = "warm work"
"""Of every chunk's request: there is one at a time."""
MOST_JOBS = 64
"""Jobs of one tenant that wait; beyond that its oldest is dropped."""
MOST_TENANTS = 1024
WARM_ENDINGS = ("done", "dropped", "evicted", "refused")


@dataclass(frozen=True, slots=True, eq=False)
class Warm:
    """Tokens that a request is expected to begin with."""

    tokens: Tokens
    scope: str = ""
    tenant: str = ""


def announced(prompt: Tokens, scope: str = "", tenant: str = "") -> Warm:
    """What a request with exactly this prompt reuses: all but its last token, from which it generates the next."""
    return Warm(prompt[:-1], scope, tenant)


@dataclass(frozen=True, slots=True, eq=False)
class TurnEnd:
    """A turn of a conversation has ended."""

    now: Tokens
    """Prompt and answer."""
    recurring: tuple[int, ...]
    """How many of them the next turn begins with, for each way to continue."""
    nexts: tuple[Tokens, ...]
    """What the next turn begins with, for each way to continue."""
    scope: str = ""
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class PrefixWarmed(Event):
    """Warm work has computed tokens."""

    name: ClassVar[str] = "warmed"
    tokens: int


@dataclass(frozen=True, slots=True)
class WarmEnded(Event):
    """Warm work for one prompt has ended: `done`; `dropped` for newer ones, or because a step failed; `evicted` before
    it was done, as memory is short; `refused` as too long."""

    name: ClassVar[str] = "warm_ended"
    ending: str

    @property
    def label(self) -> str:
        return self.ending


@dataclass(frozen=True, slots=True)
class TurnEnded(Event):
    """A turn of a conversation has ended."""

    name: ClassVar[str] = "turn_ended"
    recurs: int
    gap: int
    beyond: int


@dataclass(slots=True, eq=False)
class _Job:
    warm: Warm
    first: int | None = None
    """Where its first chunk began; boundaries of later ones go as soon as the next one is there."""
    reached: int = 0
    """Tokens that its chunks have computed; if they are evicted before it is done, there is no room for it."""


@dataclass(frozen=True, slots=True, eq=False)
class _Chunk:
    job: _Job
    begin: int
    end: int
    at: float


class WarmWork:
    def __init__(self, engine: Engine, pace: Pace) -> None:
        self.engine, self.pace = engine, pace
        self._waiting: OrderedDict[str, deque[_Job]] = OrderedDict()
        """By tenant; the first one's turn is next."""
        self._chunk: _Chunk | None = None
        self._launched: _Chunk | None = None
        """Its step is in flight."""
        self._computed = 0
        """Tokens of chunks since the last report: a tier may load some instead."""
        self.counters = Counters()
        """Events of chunks, which the engine's own counters have too."""
        engine.scheduler.events.subscribe(self._listen)

    def __len__(self) -> int:
        """Prompts that wait, or are being computed."""
        return sum(map(len, self._waiting.values())) + (self._chunk is not None)

    # ── asking ────────────────────────────────────────────────────────────

    def add(self, job: Warm) -> None:
        """Computes these tokens when there is nothing else to do."""
        own = self._waiting.setdefault(job.tenant, deque())
        for old in [one for one in own if one.warm.scope == job.scope and _begins(job.tokens, one.warm.tokens)]:
            own.remove(old)  # the conversation has gone on
        own.append(_Job(job))
        if len(own) > MOST_JOBS:
            own.popleft()
            self._end("dropped")
        if len(self._waiting) > MOST_TENANTS:
            for _ in self._waiting.popitem(last=False)[1]:
                self._end("dropped")

    def end_turn(self, turn: TurnEnd) -> None:
        """Keeps what the next turn begins with, and computes what of it is not there."""
        kept = act(self.engine, turn_ended(turn.scope, turn.now, turn.recurring))
        if kept is not None:
            events = self.engine.scheduler.events
            events.publish(TurnEnded(events.step, kept.recurs, kept.gap, kept.beyond))
        for tokens in turn.nexts:
            self.add(Warm(tokens, turn.scope, turn.tenant))

    def forget(self, scope: str | None = None) -> None:
        """Drops the prompts of a scope, or of all: their owner has dropped its cache."""
        self.give_way()
        for tenant, own in list(self._waiting.items()):
            left = deque(job for job in own if scope is not None and job.warm.scope != scope)
            for _ in range(len(own) - len(left)):
                self._end("dropped")
            self._waiting[tenant] = left

    # ── steps ─────────────────────────────────────────────────────────────

    def step(self) -> bool:
        """One step of the engine; of warm work if there is nothing else to do. False: nothing is left to do."""
        if self.is_idle():
            self._note_pace()
            self._begin()
        is_busy = self.engine.step()
        if self._chunk is not None:
            self._look(self._chunk)
        return is_busy or len(self) > 0 or self._launched is not None

    def may_go_on(self) -> bool:
        """Whether no request is there: only chunks, and the step of one."""
        rows, queue = self.engine.scheduler.running, self.engine.scheduler.queue
        return len(rows) + len(queue) == (self._chunk is not None)

    def is_idle(self) -> bool:
        return self._chunk is None and self.engine.scheduler.is_idle()

    def give_way(self) -> None:
        """A request is about to be submitted: whatever is left of a chunk leaves the engine first."""
        if self._chunk is not None:
            chunk, self._chunk = self._chunk, None
            self.engine.cancel(NAME)
            self._put_back(chunk.job)
        self._launched = None  # the step in flight runs next to the request's own: its time says nothing

    def _begin(self) -> None:
        while (job := self._next()) is not None:
            begin, end = self._span(job.warm)
            job.first = begin if job.first is None else job.first
            if begin >= end or begin < job.reached:
                self._end("done" if begin >= end else "evicted")
                continue
            tokens, scope = job.warm.tokens[:end], job.warm.scope
            try:  # it may find less than now, and compute more: then in several steps
                self.engine.submit(Request(NAME, tokens, 1, scope=scope, tenant=NAME, chunk_tokens=end - begin))
            except (InputError, QueueFull):
                self._end("refused")
                continue
            act(self.engine, uncounted(NAME))
            self._chunk = _Chunk(job, begin, end, self.engine.clock())
            return

    def _next(self) -> _Job | None:
        """Tenants take turns."""
        while self._waiting:
            tenant, own = self._waiting.popitem(last=False)
            if own:
                job = own.popleft()
                if own:
                    self._waiting[tenant] = own
                return job
        return None

    def _span(self, job: Warm) -> tuple[int, int]:
        """The next chunk of a job: from the greatest boundary that the cache has, up to the end of a unit, or of the
        tokens where a boundary can be there."""
        reuse, unit = self.engine.scheduler.reuse, self.engine.scheduler.reuse.index.unit
        if reuse.index.disabled:
            return 0, 0
        root = reuse.root_of(job.scope)
        size = len(job.tokens) if reuse.index.coverage.has_boundaries else len(job.tokens) // unit * unit
        begin = reuse.index.find(keys_of(root, job.tokens, unit), root, job.tokens, size).tokens
        end = (begin + max(unit, self.pace.tokens)) // unit * unit
        return begin, min(end, size)

    def _look(self, chunk: _Chunk) -> None:
        """If all of the chunk is launched, its request leaves: the cache keeps what is in flight."""
        rows, scheduler = self.engine.scheduler.rows, self.engine.scheduler
        row = rows.row_of.get(NAME)
        if NAME not in self.engine.streams:  # its step failed
            self._chunk = None
            self._end("dropped")
        elif row is not None and rows.computed[row] >= chunk.end:
            self._chunk, self._launched = None, chunk
            chunk.job.reached = chunk.end
            self.engine.cancel(NAME)
            warm, first = chunk.job.warm, min(chunk.begin, chunk.job.first or 0)
            act(self.engine, chunk_ended(warm.scope, warm.tokens[: chunk.end], first))
            tokens, self._computed = self._computed, 0
            scheduler.events.publish(PrefixWarmed(scheduler.steps, tokens))
            self._put_back(chunk.job)

    def _put_back(self, job: _Job) -> None:
        self._waiting.setdefault(job.warm.tenant, deque()).appendleft(job)

    def _note_pace(self) -> None:
        if self._launched is not None:
            chunk, self._launched = self._launched, None
            self.pace.note(chunk.end - chunk.begin, self.engine.clock() - chunk.at)

    def _end(self, ending: str) -> None:
        events = self.engine.scheduler.events
        events.publish(WarmEnded(events.step, ending))

    def _listen(self, event: Event) -> None:
        is_request = isinstance(event, RequestEvent) and event.request == NAME
        if isinstance(event, StepLaunched) and NAME in self.engine.streams:
            self._computed += event.tokens
            self.counters(event)
        elif is_request:
            self.counters(event)


def warm_work(engine: Engine, limit_seconds: float) -> WarmWork:
    """`limit_seconds`: how long a request may wait for a chunk."""
    plan = engine.scheduler.plan
    return WarmWork(engine, Pace(limit_seconds, max(1, plan.reuse_unit_tokens), plan.batch_tokens))


def _begins(tokens: Tokens, others: Tokens) -> bool:
    return len(others) <= len(tokens) and np.array_equal(tokens[: len(others)], others)
