"""A simulated device that computes nothing: it determines when a step would be done, and advances the clock to it.

launched    step 0 ─┐  step 1 ─┐                     a stage works on one step at a time; a step begins there when
stage 0     ├── 0 ──┼──── 1 ───┼── 2 ──┤             the stage is free, and the stage before has passed it on
stage 1             ├── 0 ──┤  ├──── 1 ───┼── 2 ──┤
clock                       ▲ collect     ▲ collect  and time passes only in waits for a result
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from quire.core.step import Ints, Step, StepResult
from quire.simulate.cost import CostModel
from quire.simulate.recorder import Recorder
from quire.simulate.tier import SimulatedTier
from quire.simulate.tokens import Words, mixed_tokens


class VirtualClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True, slots=True, eq=False)
class _Flight:
    result: StepResult
    end: float
    places: Ints
    tenancies: Ints


class CostRunner:
    """Generates tokens that depend only on a request's name and the position."""

    def __init__(
        self,
        cost: CostModel,
        clock: VirtualClock,
        recorder: Recorder,
        seeds: Words,
        tier: SimulatedTier | None = None,
    ) -> None:
        self.cost, self.clock, self.recorder, self.seeds, self.tier = cost, clock, recorder, seeds, tier
        self.busy_seconds = 0.0
        """Of a stage, on average."""
        self._free_at = [0.0] * len(cost.stages)
        """By stage."""
        self._flying: deque[_Flight] = deque()

    def launch(self, step: Step) -> None:
        if self.tier is not None:
            for store in step.stores:
                self.tier.note_stored(store.place.number)
            for number, _ in step.loads:
                self.tier.note_landed(number)
        samples = np.flatnonzero(step.samples)
        end = self._pass_stages(step, len(samples))
        places = self.recorder.place_in_row[step.rows[samples]]
        tokens = mixed_tokens(self.seeds[places], step.starts[samples] + step.counts[samples])
        result = StepResult(step.number, tokens.astype(np.int64))
        self._flying.append(_Flight(result, end, places, self.recorder.tenancy[places]))

    def _pass_stages(self, step: Step, samples: int) -> float:
        """The step takes its turn at each stage. Returns when it leaves the last one."""
        seconds, passing = (0.0,) * len(self._free_at), 0.0
        if len(step.rows):
            seconds = self.cost.stage_seconds(step.starts, step.counts, samples, step.captures)
            passing = self.cost.passing_seconds(step.tokens)
        there = self.clock.now
        for stage, own in enumerate(seconds):
            self._free_at[stage] = max(self._free_at[stage], there) + own
            there = self._free_at[stage] + passing
        self.busy_seconds += sum(seconds) / len(seconds)
        return self._free_at[-1]

    def collect(self) -> StepResult:
        flight = self._flying.popleft()
        self.clock.now = flight.end
        self.recorder.tokens_came(flight.end, flight.places, flight.tenancies)
        return flight.result
