"""Progress: the elder gets a token in every step that could give it one, and everyone ends in time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quire.check import state
from quire.check.definitions import Violation
from quire.check.laws import Law
from quire.check.promises import is_late
from quire.core.step import Step
from quire.engine.engine import Stream
from quire.scheduler.scheduler import Scheduler

MOST_IDLE_TURNS = 1
"""A turn that finds the elder's load over may be spent on that."""


@dataclass(slots=True, eq=False)
class Accepted:
    """A request that must end, and by which launch."""

    stream: Stream
    last_launch: int
    is_aborted: bool = False


class Progress(Law):
    def __init__(
        self,
        scheduler: Scheduler,
        in_flight: int,
        load_seconds: float,
        launched: Callable[[], int],
        now: Callable[[], int],
        is_awaited_by: Callable[[str], bool],
    ) -> None:
        """`in_flight`: steps at most; `load_seconds`: what a load may take, 0 without a tier; `is_awaited_by`: whether
        a request waits for one."""
        self.scheduler, self.in_flight, self.load_seconds = scheduler, in_flight, load_seconds
        self.launched, self.now, self.is_awaited_by = launched, now, is_awaited_by
        self.accepted: dict[str, Accepted] = {}
        """Not ended yet, in the order of arrival: the first one is the elder."""
        self._idle_turns = self._launched_before = 0

    def accept(self, stream: Stream) -> None:
        steps = stream.request.limit + sum(one.stream.request.limit for one in self.accepted.values())
        waits = (len(self.accepted) + 1) * (int(self.load_seconds) + 2) * (self.load_seconds > 0)
        last_launch = self.launched() + self.in_flight * (steps + waits + 1) - 1
        self.accepted[stream.request.name] = Accepted(stream, last_launch)

    def check_elder(self, step: Step) -> None:
        """With nothing else in flight, a step computes at least one token of the elder."""
        elder = next((name for name, one in self.accepted.items() if one.stream.ended is None), None)
        if elder is None or len(self.scheduler.flying) > 1 or self.is_awaited_by(elder):
            return
        row = state.running(self.scheduler).get(elder)
        if row is None or row not in step.rows.tolist():
            raise Violation(f"nothing is in flight and step {step.number} computes no token of the elder, {elder}")

    def before_turn(self) -> None:
        self._launched_before = self.launched()

    def after_turn(self) -> None:
        """No request waits longer than the tokens of all older ones allow, nor past its deadline."""
        for name, one in self.accepted.items():
            if self.launched() > one.last_launch:
                raise Violation(
                    f"request {name} has not ended after {self.launched()} steps, {one.last_launch} allowed"
                )
            if is_late(one.stream.request, self.now()):
                raise Violation(f"request {name} runs at {self.now()}, past its deadline {one.stream.request.deadline}")
        elder = next(iter(self.accepted), "")
        if self.launched() > self._launched_before or self.scheduler.flying or self.is_awaited_by(elder):
            self._idle_turns = 0
        elif elder:
            self._idle_turns += 1
            if self._idle_turns > MOST_IDLE_TURNS:
                raise Violation(f"stuck: nothing is in flight or launched turn after turn, and {elder} has not ended")
