"""The Quire column of bench/reuse.py: the real engine on virtual time, and what its prefill steps cost.

*Prefill seconds* are those of steps with tokens of prompts, by the cost model, for these rows alone and with the states
that they capture. *Unsplit* is what the same tokens would have cost if each prompt, from the moment of its first chunk,
had filled the budgets that its steps had left: chunks that were cut short are the difference.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from quire.core.events import Event, RequestAdmitted
from quire.core.rules import Rules
from quire.core.step import Step, StepResult
from quire.plan.plan import Plan
from quire.simulate.cost import CostModel
from quire.simulate.replay import Replay
from quire.simulate.runner import CostRunner
from reuse_workloads import Work

MISSED = "missed_"
"""The numbers of ADMITTED events that begin so say why tokens that had been computed before were not found."""


@dataclass(frozen=True, slots=True)
class PlayedQuire:
    hits: list[int]
    """Of each request: tokens of its prompt that were found when it was first let in."""
    seconds: float
    steps: int
    preemptions: int
    prefill_seconds: float
    unsplit_seconds: float
    missed: dict[str, int] = field(default_factory=dict)

    @property
    def hit_tokens(self) -> int:
        return sum(self.hits)


@dataclass(frozen=True, slots=True)
class Chunk:
    step: int
    place: int
    tenancy: int
    """How often it had been preempted: it is computed again then."""
    start: int
    tokens: int
    """Of the prompt."""

    @property
    def prompt(self) -> tuple[int, int]:
        return self.place, self.tenancy


class Watching:
    """The simulator's runner; remembers which prompts each step computed."""

    def __init__(self, runner: CostRunner, prompts: tuple[int, ...]) -> None:
        self.runner, self.prompts = runner, np.array(prompts)
        self.steps = 0
        self.chunks: list[Chunk] = []
        self.decoded: list[int] = []
        """Tokens of each step that are of no prompt."""
        self.seconds = 0.0

    def launch(self, step: Step) -> None:
        places = self.runner.recorder.place_in_row[step.rows] if len(step.rows) else step.rows
        tokens = np.clip(self.prompts[places] - step.starts, 0, step.counts)
        chosen = np.flatnonzero(tokens)
        tenancies = self.runner.recorder.tenancy[places[chosen]]
        columns = (places[chosen], tenancies, step.starts[chosen], tokens[chosen])
        self.chunks += [Chunk(self.steps, *one) for one in zip(*(column.tolist() for column in columns), strict=True)]
        self.decoded.append(int(step.counts.sum() - tokens.sum()))
        if len(chosen):
            samples = int(step.samples[chosen].sum())
            self.seconds += self.runner.cost.seconds(columns[2], columns[3], samples, step.captures)
        self.steps += 1
        self.runner.launch(step)

    def collect(self) -> StepResult:
        return self.runner.collect()


def unsplit_seconds(chunks: list[Chunk], decoded: list[int], cost: CostModel, budget: int) -> float:
    """Of the same chunks, each enlarged by those of the same prompt that follow it, as far as its step has room."""
    left: Counter[tuple[int, int]] = Counter()
    by_step: dict[int, list[Chunk]] = {}
    for chunk in chunks:
        left[chunk.prompt] += chunk.tokens
        by_step.setdefault(chunk.step, []).append(chunk)
    reached: dict[tuple[int, int], int] = {}
    seconds = 0.0
    for step, own in by_step.items():
        rows, room, samples = [], budget - decoded[step], 0
        for chunk in own:
            start, tokens = reached.get(chunk.prompt, chunk.start), min(left[chunk.prompt], room)
            if tokens:
                rows.append((start, tokens))
                reached[chunk.prompt] = start + tokens
                left[chunk.prompt] -= tokens
                samples += not left[chunk.prompt]
                room -= tokens
        if rows:
            starts, counts = np.array(rows).T
            seconds += cost.seconds(starts, counts, samples)
    return seconds


def play(plan: Plan, cost: CostModel, work: Work) -> PlayedQuire:
    replay = Replay(plan, cost, work.trace, Rules())
    missed: Counter[str] = Counter()

    def hear(event: Event) -> None:
        if isinstance(event, RequestAdmitted) and not event.preemptions:
            missed.update({name: count for name, count in event.numbers.items() if name.startswith(MISSED)})

    scheduler = replay.engine.scheduler
    scheduler.events.subscribe(hear)
    replay.engine.runner = watching = Watching(replay.runner, work.prompts)
    played = replay.play()
    assert not played.refused, "the plan was made for the longest request"
    recorder = played.recorder
    return PlayedQuire(
        [int(tokens) for tokens in recorder.hit_tokens],
        played.seconds,
        recorder.steps,
        recorder.preemptions,
        watching.seconds,
        unsplit_seconds(watching.chunks, watching.decoded, cost, plan.batch_tokens),
        dict(missed),
    )
