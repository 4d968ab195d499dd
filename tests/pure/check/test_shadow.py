"""The checker's runner does what a step asks for: it keeps the states that are captured in passing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from quire.check.contents import POISON
from quire.check.definitions import Violation
from quire.check.scripts import script_for
from quire.check.shadow import ShadowRunner
from quire.check.systems import in_groups
from quire.core.request import Request
from quire.core.step import Capture, Step
from quire.engine.engine import Engine
from quire.models.shape import ModelShape
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings
from small_kinds import KINDS

PAGES = np.array([40, 43])
"""On sheets that these requests never get."""
Captures = Callable[[int, Step], tuple[Capture, ...]]
"""By the kind of the states, and the step."""
FIRST, SECOND = Request("first", np.arange(9), 4), Request("second", np.arange(9) + 1, 4)


def plan_in_two_groups() -> Plan:
    shape = ModelShape("small", "test", (KINDS["state"], KINDS["full"]), max_length=32, weights_known=False)
    settings = Settings(max_length=32, max_requests=2, batch_tokens=20, page_tokens={"full": 4}, match_unit_tokens=4)
    return in_groups(make_plan(shape, settings, Budget(sheets=(8,))), spare=40)


class Capturing(ShadowRunner):
    """Adds captures to the first step."""

    def __init__(self, captures: Captures) -> None:
        super().__init__()
        self.captures = captures

    def launch(self, step: Step) -> None:
        kind = next(index for index, one in enumerate(self.stages[0]) if one.kind.kind == "state")
        super().launch(replace(step, captures=self.captures(kind, step)) if step.number == 0 else step)


def run(captures: Captures) -> Capturing:
    runner = Capturing(captures)
    engine = Engine(plan_in_two_groups(), runner)
    runner.attach(engine.scheduler)
    for request in (FIRST, SECOND):
        runner.scripts[request.name] = script_for(request)
        engine.submit(request)
    engine.step()
    return runner


def test_a_captured_page_stands_for_exactly_the_tokens_named() -> None:
    """In every group, of the row that is named. Red if the runner ignores captures or takes another row or token."""
    ends: list[int] = []

    def captures(kind: int, step: Step) -> tuple[Capture, ...]:
        ends.extend([5, int(step.ends[1])])
        return tuple(Capture(1, end, 0, kind, PAGES + place) for place, end in enumerate(ends))

    runner = run(captures)
    (states,) = (one for one in runner.stages[0] if one.kind.kind == "state")
    for place, end in enumerate(ends):
        digest = script_for(SECOND).digests[end - 1]
        assert states.slots[PAGES + place, 0].tolist() == [digest, digest + 1]
    assert (states.slots[PAGES + 2, 0] == POISON).all()


@pytest.mark.parametrize("tokens", [0, 10])
def test_a_capture_outside_of_the_chunk_is_a_violation(tokens: int) -> None:
    with pytest.raises(Violation, match=f"request first is captured after {tokens} tokens, outside of its chunk"):
        run(lambda kind, _step: (Capture(0, tokens, 0, kind, PAGES),))
