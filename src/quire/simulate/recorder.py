"""Records while a trace runs: when requests arrived, got tokens and ended, and what they held."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy

import numpy as np

from quire.cache.memory import StageMemory
from quire.cache.pool import Holder
from quire.core.events import (
    Event,
    LoadFinished,
    PrefixEvicted,
    RequestAdmitted,
    RequestEnded,
    RequestPreempted,
    StepLaunched,
)
from quire.core.step import Ints
from quire.simulate.traces import Asked

SAMPLE_STEPS = 16
"""Steps from one count of the pages to the next: counting them all costs more than a small step does."""

COUNTS = ("preemptions", "evictions", "evicted_tokens", "steps", "step_tokens")


class Recorder:
    """Columns by place in the trace, so that a step writes all its rows at once."""

    def __init__(self, requests: Sequence[Asked]) -> None:
        count = len(requests)
        self.place_of = {asked.name: place for place, asked in enumerate(requests)}
        self.arrived, self.first, self.last = (np.full(count, np.nan) for _ in range(3))
        self.tenancy = np.zeros(count, dtype=np.int64)
        """How often it was preempted: the engine drops a token from before a preemption."""
        self.hit_tokens = np.zeros(count, dtype=np.int64)
        """Tokens of its prompt that were reused at its first admission: found in the pool, or loaded from a tier."""
        self.missed: list[Mapping[str, int]] = [{}] * count
        """Tokens of its prompt that were computed before and not found, by cause; empty if a tier loaded them."""
        self.place_in_row = np.zeros(0, dtype=np.int64)
        self.row_of: Mapping[str, int] = {}
        self.gaps = np.zeros(sum(asked.output_tokens for asked in requests))
        self.gap_count = self.output_tokens = 0
        self.preemptions = self.evictions = self.evicted_tokens = self.steps = self.step_tokens = 0
        self.ended: list[int] = []
        """Requests that ended since the last look."""

    def attach(self, row_of: Mapping[str, int], rows: int) -> None:
        """Where to look up the row of an admitted request."""
        self.row_of, self.place_in_row = row_of, np.zeros(rows, dtype=np.int64)

    def on_event(self, event: Event) -> None:
        if isinstance(event, StepLaunched):
            self.steps += 1
            self.step_tokens += event.tokens
        elif isinstance(event, PrefixEvicted):
            self.evictions += 1
            self.evicted_tokens += event.tokens
        elif isinstance(event, RequestAdmitted):
            place = self.place_of[event.request]
            self.place_in_row[self.row_of[event.request]] = place
            if not event.preemptions:
                self.hit_tokens[place] = event.hit_tokens
                self.missed[place] = self.missed[place] or event.numbers
        elif isinstance(event, LoadFinished):
            if not event.preemptions:
                self.hit_tokens[self.place_of[event.request]] = event.tokens
                self.missed[self.place_of[event.request]] = {}
        elif isinstance(event, RequestPreempted):
            self.preemptions += 1
            self.tenancy[self.place_of[event.request]] += 1
        elif isinstance(event, RequestEnded):
            self.ended.append(self.place_of[event.request])

    def missed_tokens(self, cause: str) -> int:
        return sum(numbers.get(f"missed_{cause}", 0) for numbers in self.missed)

    def tokens_came(self, now: float, places: Ints, tenancies: Ints) -> None:
        """One token for each of these requests, unless it was preempted in the meantime."""
        places = places[self.tenancy[places] == tenancies]
        since = now - self.last[places]
        gaps = since[~np.isnan(since)]
        self.gaps[self.gap_count : self.gap_count + len(gaps)] = gaps
        self.gap_count += len(gaps)
        self.output_tokens += len(places)
        if len(gaps) < len(places):
            self.first[places[np.isnan(since)]] = now
        self.last[places] = now


class MemoryUse:
    """Pages of each kind over time: those that requests hold, and those that only the cache keeps."""

    def __init__(self, memories: Sequence[StageMemory]) -> None:
        self.shelves = [shelf for memory in memories for shelf in memory.pool.shelves]
        self.kinds = [(stage, kind) for stage, memory in enumerate(memories) for kind in memory.stage.kinds]
        self.peak = np.zeros((2, len(self.shelves)), dtype=np.int64)
        self.page_seconds = np.zeros((2, len(self.shelves)))
        self.times: list[float] = []
        self.samples: list[Ints] = []
        """(held by requests, kept only by the cache) × kinds, at each of these times."""
        self._looks = 0

    def look(self, now: float) -> None:
        """Called after every step; counts at the first and then at every SAMPLE_STEPS-th."""
        if self._looks % SAMPLE_STEPS == 0:
            self.sample(now)
        self._looks += 1

    def sample(self, now: float) -> None:
        """The last count applies until now; then all pages are counted again."""
        if self.samples:
            self.page_seconds += (now - self.times[-1]) * self.samples[-1]
        counts = np.zeros_like(self.peak)
        for place, shelf in enumerate(self.shelves):
            held = shelf.count(Holder.REQUEST) > 0
            counts[:, place] = np.count_nonzero(held), np.count_nonzero(shelf.count(Holder.CACHE)[~held])
        np.maximum(self.peak, counts, out=self.peak)
        self.times.append(now)
        self.samples.append(counts)


def merged(recorders: Sequence[Recorder]) -> Recorder:
    """Those of several replicas as one: each request was at one of them. One alone stays what it is."""
    if len(recorders) == 1:
        return recorders[0]
    first, *others = recorders
    whole = copy(first)
    for one in others:
        whole.arrived = np.fmin(whole.arrived, one.arrived)
        whole.first, whole.last = np.fmin(whole.first, one.first), np.fmin(whole.last, one.last)
        whole.hit_tokens = whole.hit_tokens + one.hit_tokens
        whole.missed = [mine or other for mine, other in zip(whole.missed, one.missed, strict=True)]
    whole.gaps = np.concatenate([one.gaps[: one.gap_count] for one in recorders])
    for name in ("gap_count", "output_tokens", *COUNTS):
        setattr(whole, name, sum(getattr(one, name) for one in recorders))
    return whole


def merged_use(uses: Sequence[MemoryUse]) -> MemoryUse:
    """Peaks of the fullest replica, and means over all. What was counted at each time is the first one's."""
    whole = copy(uses[0])
    whole.peak = np.max([one.peak for one in uses], axis=0)
    whole.page_seconds = np.sum([one.page_seconds for one in uses], axis=0) / len(uses)
    return whole
