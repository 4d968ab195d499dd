"""Plays a trace to real engines on virtual time: to one, or to replicas behind a router.

arrivals ─▶ router ─▶ Replica: Engine ─▶ CostRunner ─▶ clock
    ▲                    │
    └─ next turns ◀─ ended        idle: the clock jumps to the next arrival

Each replica has a clock of its own. The one that is furthest behind makes the next step, so a request arrives when all
clocks of busy replicas have passed its time. Asking a replica takes no time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from quire.core.request import Request
from quire.core.rules import Rules
from quire.engine.engine import Engine
from quire.explain.room import Room, ask
from quire.plan.plan import Plan
from quire.route.policies import AnyReplica
from quire.route.policy import Arrival, Policy
from quire.simulate.ceiling import Ceiling
from quire.simulate.cost import CostModel
from quire.simulate.recorder import MemoryUse, Recorder, merged, merged_use
from quire.simulate.replica import Hardware, Replica
from quire.simulate.runner import CostRunner, VirtualClock
from quire.simulate.tier import HostCost, SimulatedTier
from quire.simulate.tokens import mixed_tokens, seed_of
from quire.simulate.traces import Asked, Trace
from quire.tiers.in_memory import NEVER

Progress = Callable[[int, int], None]


def _silent(done: int, total: int) -> None:
    del done, total


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """All that a report needs, once the last request has ended."""

    trace: Trace
    recorder: Recorder
    """Of all replicas together."""
    memory: MemoryUse
    """Of one replica: means over all, and the greatest peaks."""
    seconds: float
    busy_seconds: float
    """Of one replica, on average."""
    match_unit_tokens: int
    ceiling_tokens: int
    """Tokens of prompts that an unlimited cache would reuse with this model's kinds."""
    shared_tokens: int
    """Tokens of prompts that earlier requests had too, wherever a hit may end."""
    refused: int
    turned_away: int
    """Requests that found the queue full and were submitted again later."""
    tier: Mapping[str, int] | None
    """Counters of the tiers, if there are any."""
    routed: tuple[int, ...]
    """Requests by replica."""


class Fleet:
    """Replicas of one engine, and the router in front of them."""

    def __init__(self, hardware: Hardware, trace: Trace, policy: Policy, replicas: int) -> None:
        self.trace, self.policy = trace, policy
        self.seeds = np.array([seed_of(asked.name) for asked in trace.requests], dtype=np.uint64)
        self.replicas = [Replica(hardware, trace, self.seeds, self._next_arrival) for _ in range(replicas)]
        self.ceiling = Ceiling.of_plan(hardware.plan)
        self.refused = 0
        self.routed = [0] * replicas
        self._coming = [(one.seconds, place) for place, one in enumerate(trace.requests) if one.after is None]
        heapq.heapify(self._coming)
        self._followers = _followers(trace.requests)
        self._sessions = _sessions(trace.requests)

    def play(self, progress: Progress = _silent) -> Played:
        done, total = 0, len(self.trace.requests)
        while (behind := self._furthest_behind()) is not None or self._coming:
            if behind is None or self._next_arrival() <= behind.clock.now:
                self._route()
                continue
            behind.step()
            done += self._follow_up(behind)
            progress(done + self.refused, total)
        return self._played()

    def _furthest_behind(self) -> Replica | None:
        busy = [one for one in self.replicas if one.is_busy]
        return min(busy, key=lambda one: one.clock.now) if busy else None

    def _next_arrival(self) -> float:
        return self._coming[0][0] if self._coming else NEVER

    def _route(self) -> None:
        """The next arrival goes to a replica."""
        seconds, place = heapq.heappop(self._coming)
        asked = self.trace.requests[place]
        prompt = asked.recipe.made()
        request = Request(
            asked.name, prompt, asked.output_tokens, asked.priority, tenant=asked.tenant, retain=asked.retain
        )
        chosen = self.policy.choose(self._arrival(place, seconds, request))
        replica = self.replicas[chosen]
        if not replica.submit(request, seconds):
            self._refuse(place)
            return
        self.routed[chosen] += 1
        replica.recorder.arrived[place] = seconds
        answer = mixed_tokens(self.seeds[place : place + 1], len(prompt) + np.arange(request.max_tokens))
        self.ceiling.of(prompt, answer)

    def _arrival(self, place: int, seconds: float, request: Request) -> Arrival:
        def rooms() -> Sequence[Room]:
            return [ask(one.engine, request) for one in self.replicas]

        return Arrival(self._sessions[place], seconds, len(self.replicas), rooms)

    def _refuse(self, place: int) -> None:
        """It could never run, and neither could its next turns."""
        self.refused += 1
        for follower in self._followers[place]:
            self._refuse(follower)

    def _follow_up(self, replica: Replica) -> int:
        """Schedules the next turns of requests that ended. Returns how many ended."""
        ended, replica.recorder.ended = replica.recorder.ended, []
        for place in ended:
            for follower in self._followers[place]:
                seconds = replica.clock.now + self.trace.requests[follower].seconds
                heapq.heappush(self._coming, (seconds, follower))
        return len(ended)

    def _played(self) -> Played:
        end = max(one.clock.now for one in self.replicas)
        for one in self.replicas:
            one.memory.sample(end)
        recorder = merged([one.recorder for one in self.replicas])
        tiers = [one.tier.counters for one in self.replicas if one.tier is not None]
        return Played(
            self.trace,
            recorder,
            merged_use([one.memory for one in self.replicas]),
            end - float(np.nanmin(recorder.arrived, initial=end)),
            sum(one.runner.busy_seconds for one in self.replicas) / len(self.replicas),
            self.ceiling.unit_tokens,
            self.ceiling.reusable_tokens,
            self.ceiling.shared_tokens,
            self.refused,
            sum(one.turned_away for one in self.replicas),
            {name: sum(tier[name] for tier in tiers) for name in set().union(*tiers)} if tiers else None,
            tuple(self.routed),
        )


class Replay(Fleet):
    """One engine, without a router."""

    def __init__(self, plan: Plan, cost: CostModel, trace: Trace, rules: Rules, host: HostCost | None = None) -> None:
        super().__init__(Hardware(plan, cost, rules, host), trace, AnyReplica(), 1)
        (self._one,) = self.replicas

    @property
    def engine(self) -> Engine:
        return self._one.engine

    @property
    def recorder(self) -> Recorder:
        return self._one.recorder

    @property
    def runner(self) -> CostRunner:
        return self._one.runner

    @property
    def clock(self) -> VirtualClock:
        return self._one.clock

    @property
    def tier(self) -> SimulatedTier | None:
        return self._one.tier

    def wait_for_transfers(self) -> None:
        self._one.wait_for_transfers()


def _followers(requests: Sequence[Asked]) -> list[list[int]]:
    followers: list[list[int]] = [[] for _ in requests]
    for place, asked in enumerate(requests):
        if asked.after is not None:
            followers[asked.after].append(place)
    return followers


def _sessions(requests: Sequence[Asked]) -> list[str]:
    """The name of each request's session: that of its first turn."""
    names: list[str] = []
    for asked in requests:
        names.append(asked.name if asked.after is None else names[asked.after])
    return names
