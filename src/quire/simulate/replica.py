"""One engine of a simulated fleet, with a clock, a device and a tier of its own.

request ──submit──▶ held while the queue is full ──▶ Engine ─▶ CostRunner ─▶ its clock
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from quire.core.errors import QueueFull, QuireError
from quire.core.request import Request
from quire.core.rules import Rules
from quire.engine.engine import Engine
from quire.plan import bound
from quire.plan.plan import Plan
from quire.plan.records import Records
from quire.recording.recorder import RecordingEngine, open_recording
from quire.simulate.cost import CostModel
from quire.simulate.recorder import MemoryUse, Recorder
from quire.simulate.runner import CostRunner, VirtualClock
from quire.simulate.tier import HostCost, SimulatedTier
from quire.simulate.tokens import Words
from quire.simulate.traces import Trace
from quire.tiers.in_memory import NEVER

TICK_SECONDS = 1e-6
"""Added to a time to wait for, so that it has passed."""


class Stalled(QuireError):
    """Nothing was computed for longer than a load may take: the guarantee of progress is broken."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """What each replica runs on, and by which rules."""

    plan: Plan
    cost: CostModel
    rules: Rules
    host: HostCost | None = None
    """With the plan's host memory as a tier."""
    overlap: int = 2
    """Steps in flight, as the engine is asked for."""
    record: Path | None = None
    """Where the engine's inputs are recorded, for a replay; with one replica alone."""


class Replica:
    def __init__(self, hardware: Hardware, trace: Trace, seeds: Words, next_arrival: Callable[[], float]) -> None:
        """`next_arrival`: when the next request comes to the fleet; NEVER if none does."""
        self.clock = VirtualClock()
        self.recorder = Recorder(trace.requests)
        self.tier = _tier(hardware, self.clock)
        self.runner = CostRunner(hardware.cost, self.clock, self.recorder, seeds, self.tier)
        make = Engine if hardware.record is None else partial(RecordingEngine, open_recording(hardware.record))
        self.engine: Engine = make(
            hardware.plan,
            self.runner,
            rules=hardware.rules,
            tier=self.tier,
            keeper=self.tier,
            overlap=hardware.overlap,
            clock=self.clock,
            listeners=[self.recorder.on_event],
        )
        self.engine.pause = self._wait_for_load
        self.recorder.attach(self.engine.scheduler.rows.row_of, hardware.plan.max_requests)
        self.memory = MemoryUse(self.engine.scheduler.memories)
        self.turned_away = 0
        self._is_running = False
        self._held: deque[Request] = deque()
        self._next_arrival = next_arrival
        self._longest_seconds = self.engine.scheduler.loads.seconds_for(hardware.plan.max_length)
        self._moved = (0, 0.0)

    @property
    def is_busy(self) -> bool:
        return self._is_running or bool(self._held)

    def submit(self, request: Request, seconds: float) -> bool:
        """A request that arrives at this time; held while the queue is full. False: it could never run."""
        if not self.is_busy:
            self.clock.now = max(self.clock.now, seconds)
        if not bound.admits(self.engine.scheduler.plan, request.limit):
            return False
        self._held.append(request)
        self._retry()
        self.turned_away += bool(self._held)
        return True

    def step(self) -> None:
        self._retry()
        self._is_running = self.engine.step()
        self.memory.look(self.clock.now)

    def _retry(self) -> None:
        """Submits requests that found the queue full again, in their order."""
        try:
            while self._held:
                self.engine.submit(self._held[0])
                self._held.popleft()
                self._is_running = True
        except QueueFull:
            pass

    def _wait_for_load(self) -> None:
        """There is nothing to compute: advances the clock until a load ends or is given up, or a request arrives."""
        assert self.tier is not None
        if self._moved[0] != self.recorder.steps:
            self._moved = self.recorder.steps, self.clock.now
        stalled = self._moved[1] + self._longest_seconds
        if self.clock.now > stalled:
            raise Stalled(f"nothing was computed for {self.clock.now - self._moved[1]:g} s, and requests wait")
        late = min(stalled, self.engine.scheduler.loads.next_deadline())
        moment = min(self.tier.next_moment(), self._next_arrival(), late)
        self.clock.now = max(self.clock.now, moment) + TICK_SECONDS

    def wait_for_transfers(self) -> None:
        """Advances the clock until all transfers have ended, also those that no request waits for."""
        while self.tier is not None and (moment := self.tier.next_moment()) < NEVER:
            self.clock.now = max(self.clock.now, moment)
            self.tier.answers()


def _tier(hardware: Hardware, clock: VirtualClock) -> SimulatedTier | None:
    plan = hardware.plan
    if hardware.host is None or plan.host is None:
        return None
    return SimulatedTier(Records(plan), plan.host.blocks, hardware.host, hardware.rules, clock)
