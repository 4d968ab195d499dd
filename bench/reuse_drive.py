"""Plays a workload to a baseline on virtual time: the arrivals, the cost model and the clock of bench/reuse.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from quire.core.request import Tokens
from quire.simulate.cost import CostModel
from reuse_workloads import Arrivals, Work


@dataclass(frozen=True, slots=True)
class Batch:
    """One step: request `places[i]` computes tokens [starts[i], starts[i] + counts[i])."""

    places: Sequence[int]
    starts: Sequence[int]
    counts: Sequence[int]
    samples: int
    """Rows that yield a token."""


class Server(Protocol):
    """A scheduler with a cache. It never looks at the clock."""

    def submit(self, place: int, known: Tokens, prompt_tokens: int) -> None:
        """`known`: the prompt and, behind it, the answer that will come."""
        ...

    def schedule(self) -> Batch | None:
        """The next step; None: there is nothing to compute."""
        ...

    def complete(self, batch: Batch) -> Sequence[int]:
        """The step is done. Returns who ended with it."""
        ...

    def hits(self) -> dict[int, int]:
        """By place: tokens of the prompt that were found when the request was first let in."""
        ...


@dataclass(frozen=True, slots=True)
class Driven:
    hit_tokens: int
    seconds: float
    steps: int


def drive(server: Server, cost: CostModel, work: Work) -> Driven:
    arrivals = Arrivals(work.trace.requests)
    now, steps, ended = 0.0, 0, 0
    while ended < len(work.known):
        for place in arrivals.until(now):
            server.submit(place, work.known[place], work.prompts[place])
        batch = server.schedule()
        if batch is None:
            if not arrivals:
                raise RuntimeError(f"stalled: {len(work.known) - ended} requests wait, and nothing is computed")
            now = arrivals.next_moment()
            continue
        now += cost.seconds(np.array(batch.starts), np.array(batch.counts), batch.samples)
        steps += 1
        for place in server.complete(batch):
            arrivals.ended(place, now)
            ended += 1
    return Driven(sum(server.hits().values()), now, steps)
