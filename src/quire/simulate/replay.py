"""Plays a trace to the real engine on virtual time.

arrivals ─▶ submit ─▶ Engine ─▶ CostRunner ─▶ clock
    ▲                    │
    └─ next turns ◀─ ended        idle: the clock jumps to the next arrival
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from quire.core.errors import NeverFits, QueueFull, QuireError
from quire.core.request import Request
from quire.core.rules import Rules
from quire.engine.engine import Engine
from quire.plan.plan import Plan
from quire.plan.records import Records
from quire.simulate.ceiling import Ceiling
from quire.simulate.cost import CostModel
from quire.simulate.recorder import MemoryUse, Recorder
from quire.simulate.runner import CostRunner, VirtualClock
from quire.simulate.tier import HostCost, SimulatedTier
from quire.simulate.tokens import mixed_tokens, seed_of
from quire.simulate.traces import Asked, Trace
from quire.tiers.in_memory import NEVER

TICK_SECONDS = 1e-6
"""Added to a time to wait for, so that it has passed."""
Progress = Callable[[int, int], None]


def _silent(done: int, total: int) -> None:
    del done, total


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """All that a report needs, once the last request has ended."""

    trace: Trace
    recorder: Recorder
    memory: MemoryUse
    seconds: float
    busy_seconds: float
    match_unit_tokens: int
    ceiling_tokens: int
    """Tokens of prompts that an unlimited cache would reuse with this model's kinds."""
    shared_tokens: int
    """Tokens of prompts that earlier requests had too, wherever a hit may end."""
    refused: int
    turned_away: int
    """Requests that found the queue full and were submitted again later."""
    tier: Mapping[str, int] | None
    """Counters of the tier, if there is one."""


class Stalled(QuireError):
    """Nothing was computed for longer than a load may take: the guarantee of progress is broken."""


class Replay:
    def __init__(self, plan: Plan, cost: CostModel, trace: Trace, rules: Rules, host: HostCost | None = None) -> None:
        """`host`: with the plan's host memory as a tier."""
        self.trace = trace
        self.clock = VirtualClock()
        self.recorder = Recorder(trace.requests)
        self.seeds = np.array([seed_of(asked.name) for asked in trace.requests], dtype=np.uint64)
        self.tier = _tier(plan, host, rules, self.clock)
        self.runner = CostRunner(cost, self.clock, self.recorder, self.seeds, self.tier)
        self.engine = Engine(
            plan,
            self.runner,
            rules=rules,
            tier=self.tier,
            keeper=self.tier,
            clock=self.clock,
            pause=self._wait_for_load,
            listeners=[self.recorder.on_event],
        )
        self._longest_seconds = self.engine.scheduler.loads.seconds_for(plan.max_length)
        self._moved = (0, 0.0)
        self.recorder.attach(self.engine.scheduler.rows.row_of, plan.max_requests)
        self.memory = MemoryUse(self.engine.scheduler.memories)
        self.ceiling = Ceiling.of_plan(plan)
        self.refused = self.turned_away = 0
        self._coming = [(one.seconds, place) for place, one in enumerate(trace.requests) if one.after is None]
        heapq.heapify(self._coming)
        self._held: deque[tuple[int, Request]] = deque()
        self._followers = _followers(trace.requests)

    def play(self, progress: Progress = _silent) -> Played:
        done, total = 0, len(self.trace.requests)
        is_busy = False
        while is_busy or self._coming or self._held:
            if not is_busy and not self._held:
                self.clock.now = max(self.clock.now, self._coming[0][0])
            self._submit()
            is_busy = self.engine.step()
            self.memory.look(self.clock.now)
            done += self._follow_up()
            progress(done + self.refused, total)
        return self._played()

    def _wait_for_load(self) -> None:
        """There is nothing to compute: advances the clock until a load ends or is given up, or a request arrives."""
        assert self.tier is not None
        if self._moved[0] != self.recorder.steps:
            self._moved = self.recorder.steps, self.clock.now
        stalled = self._moved[1] + self._longest_seconds
        if self.clock.now > stalled:
            raise Stalled(f"nothing was computed for {self.clock.now - self._moved[1]:g} s, and requests wait")
        late = min(stalled, self.engine.scheduler.loads.next_deadline())
        coming = self._coming[0][0] if self._coming else late
        self.clock.now = max(self.clock.now, min(self.tier.next_moment(), coming, late)) + TICK_SECONDS

    def wait_for_transfers(self) -> None:
        """Advances the clock until all transfers have ended, also those that no request waits for."""
        while self.tier is not None and (moment := self.tier.next_moment()) < NEVER:
            self.clock.now = max(self.clock.now, moment)
            self.tier.answers()

    def _submit(self) -> None:
        """Submits all requests that have arrived by now; those that found the queue full go first, in their order."""
        while self._held and self._accepted(*self._held[0]):
            self._held.popleft()
        while self._coming and self._coming[0][0] <= self.clock.now:
            seconds, place = heapq.heappop(self._coming)
            asked = self.trace.requests[place]
            self.recorder.arrived[place] = seconds
            prompt = asked.recipe.made()
            request = Request(
                asked.name, prompt, asked.output_tokens, asked.priority, tenant=asked.tenant, retain=asked.retain
            )
            if self._held or not self._accepted(place, request):
                self._held.append((place, request))
                self.turned_away += 1

    def _accepted(self, place: int, request: Request) -> bool:
        """False: the queue is full, try again later. A request that could never run ends, and so do its next turns."""
        try:
            self.engine.submit(request)
        except QueueFull:
            return False
        except NeverFits:
            self._refuse(place)
            return True
        positions = len(request.prompt) + np.arange(request.max_tokens)
        answer = mixed_tokens(self.seeds[place : place + 1], positions)
        self.ceiling.of(request.prompt, answer)
        return True

    def _refuse(self, place: int) -> None:
        self.refused += 1
        self.recorder.arrived[place] = np.nan
        for follower in self._followers[place]:
            self._refuse(follower)

    def _follow_up(self) -> int:
        """Schedules the next turns of requests that ended. Returns how many ended."""
        ended, self.recorder.ended = self.recorder.ended, []
        for place in ended:
            for follower in self._followers[place]:
                seconds = self.clock.now + self.trace.requests[follower].seconds
                heapq.heappush(self._coming, (seconds, follower))
        return len(ended)

    def _played(self) -> Played:
        self.memory.sample(self.clock.now)
        return Played(
            self.trace,
            self.recorder,
            self.memory,
            self.clock.now - float(np.nanmin(self.recorder.arrived, initial=self.clock.now)),
            self.runner.busy_seconds,
            self.ceiling.unit_tokens,
            self.ceiling.reusable_tokens,
            self.ceiling.shared_tokens,
            self.refused,
            self.turned_away,
            None if self.tier is None else dict(self.tier.counters),
        )


def _tier(plan: Plan, host: HostCost | None, rules: Rules, clock: VirtualClock) -> SimulatedTier | None:
    if host is None or plan.host is None:
        return None
    return SimulatedTier(Records(plan), plan.host.blocks, host, rules, clock)


def _followers(requests: Sequence[Asked]) -> list[list[int]]:
    followers: list[list[int]] = [[] for _ in requests]
    for place, asked in enumerate(requests):
        if asked.after is not None:
            followers[asked.after].append(place)
    return followers
