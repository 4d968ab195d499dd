"""Steps of a pipeline: what is in flight together, and that no stage is idle while a row could compute.

disjoint   a row that generates is in one step in flight; a step names every token, for its first stage computes before
           its last one has sampled anything
even       a step has at most its part of the rows that generate, and a chunk of each prompt, all of them equal
filled     a result is waited for with a step in flight for each stage, or no row can compute
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from quire.check import state
from quire.check.definitions import Violation, pages_at
from quire.check.laws import Law
from quire.core.events import Event, RequestAdmitted, StepLaunched
from quire.core.step import SAMPLED, Step
from quire.core.units import ceil_div
from quire.scheduler.scheduler import Scheduler

LEAST_CHUNK = 32
"""A chunk of a prompt has at least 1 ÷ this of a step's tokens, if so many are left."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """A running request, before a step that is being launched or could be."""

    name: str
    row: int
    settled: int
    computed: int
    """Settled or in flight."""
    known: int
    is_awaited: bool
    """A step in flight samples for it."""

    @property
    def left(self) -> int:
        return self.known - self.computed


def running_before(scheduler: Scheduler, flying: list[Step]) -> Iterator[InFlight]:
    """Requests that have a row and wait for no load, with what these steps in flight compute of them."""
    for name, row in state.running(scheduler).items():
        if state.is_loading(scheduler, row):
            continue
        settled = computed = state.settled_tokens(scheduler, row)
        is_awaited = False
        for step in flying:
            for entry in np.flatnonzero(step.rows == row).tolist():
                if state.is_current(scheduler, step, entry):
                    computed += _own_tokens(step, entry)
                    is_awaited = is_awaited or bool(step.samples[entry])
        yield InFlight(name, row, settled, computed, state.known_tokens(scheduler, name), is_awaited)


def check_disjoint(step: Step, running: Iterable[InFlight]) -> None:
    """`running`: before this step of a pipeline."""
    if np.any(step.token_ids == SAMPLED):
        raise Violation(f"step {step.number} has a token that no stage but the last one knows")
    rows = set(step.rows.tolist())
    for one in running:
        if one.row in rows and one.is_awaited:
            raise Violation(f"step {step.number} has request {one.name}, whose next token is still in flight")


def _own_tokens(step: Step, entry: int) -> int:
    """Tokens of an entry without its drafts."""
    return step.counts.item(entry) - (0 if step.drafts is None else step.drafts.item(entry))


class Stages(Law):
    def __init__(self, scheduler: Scheduler, in_flight: int) -> None:
        """`in_flight`: steps that are in flight at most."""
        self.scheduler, self.plan, self.in_flight = scheduler, scheduler.plan, in_flight
        self.is_pipeline = self.plan.pipeline_parallel > 1
        self._newcomers: set[str] = set()
        """Requests that got a row in this turn."""
        self._is_turn = False
        """A fork at a running request's end waits for all results between turns."""

    def before_turn(self) -> None:
        self._newcomers.clear()
        self._is_turn = True

    def after_turn(self) -> None:
        self._is_turn = False

    def on_event(self, event: Event) -> None:
        if isinstance(event, RequestAdmitted):
            self._newcomers.add(event.request)
        elif isinstance(event, StepLaunched) and self.is_pipeline:
            *before, step = state.flying(self.scheduler)
            running = list(running_before(self.scheduler, before))
            check_disjoint(step, running)
            if self.in_flight > 1:
                self._check_even(step, running)

    def _check_even(self, step: Step, running: list[InFlight]) -> None:
        entries = {row: entry for entry, row in enumerate(step.rows.tolist())}
        generating = [one for one in running if one.left <= 1]
        most = ceil_div(len(generating), self.in_flight)
        own = [one for one in generating if one.row in entries and one.name not in self._newcomers]
        if len(own) > most:
            raise Violation(f"step {step.number} has {len(own)} of {len(generating)} rows that generate, not {most}")
        for one in running:
            if one.row in entries:
                tokens = _own_tokens(step, entries[one.row])
                if tokens > (most := self._chunk(one)):
                    raise Violation(f"step {step.number} has {tokens} tokens of request {one.name}, not {most} at most")

    def _chunk(self, one: InFlight) -> int:
        """The most tokens of a request that one of the steps in flight may have."""
        steps = ceil_div(one.known, state.most_in_flight(self.scheduler, one.row))
        whole = min(one.known - one.settled, ceil_div(one.known, steps))
        return max(1, self.plan.batch_tokens // LEAST_CHUNK, ceil_div(whole, self.in_flight))

    def before_collect(self) -> None:
        """Called when a result is waited for."""
        flying = state.flying(self.scheduler)
        if not (self.is_pipeline and self._is_turn) or len(flying) >= self.in_flight:
            return
        for one in running_before(self.scheduler, flying):
            if self._can_compute(one):
                raise Violation(
                    f"request {one.name} could compute, and {len(flying)} of {self.in_flight} steps are in flight"
                )

    def _can_compute(self, one: InFlight) -> bool:
        """Whether it has a token that may be computed now, and there are free pages for it on every stage."""
        end = min(one.known, state.stops_at(self.scheduler, one.row))
        is_full = one.computed - one.settled >= state.most_in_flight(self.scheduler, one.row)
        if one.is_awaited or one.computed >= end or is_full:
            return False
        request = self.scheduler.rows.requests[one.row]
        ahead = min(self.plan.lookahead, request.limit - one.computed - 1)
        stages = [stage for stage in self.plan.stages if stage.kinds]
        return all(
            state.can_take(self.scheduler, number, [pages_at(kind, one.computed, 1, ahead) for kind in stage.kinds])
            for number, stage in enumerate(stages)
        )
