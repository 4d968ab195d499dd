"""Stages of a simulated pipeline work on different steps at once."""

from __future__ import annotations

import json

import numpy as np
import pytest
from small_replay import MODEL, SPEED, asked, cost_of, plan_of, seconds_of

from command import run_text
from quire.core.rules import Rules
from quire.core.step import Step
from quire.plan.settings import Settings
from quire.route.policies import AnyReplica
from quire.simulate.cost import MESSAGE_SECONDS, CostModel, cost_model
from quire.simulate.recorder import Recorder
from quire.simulate.replay import Fleet, Played
from quire.simulate.replica import Hardware
from quire.simulate.runner import CostRunner, VirtualClock
from quire.simulate.traces import Trace

TWO = Settings(pipeline_parallel=2)
STEP = np.array([900]), np.array([1])


def step(number: int) -> Step:
    """One row that generates a token after 900."""
    none = np.empty(0, dtype=np.int64)
    starts, counts = STEP
    tokens = np.zeros(1, dtype=np.int32)
    return Step(number, np.array([0]), starts, counts, np.array([True]), none, tokens)


def play(stages: int, overlap: int, requests: int = 64, output: int = 30) -> Played:
    """Requests with a prompt each, all at once."""
    plan = plan_of(settings=Settings(pipeline_parallel=stages, max_requests=requests))
    trace = Trace(
        "test", tuple(asked(f"r{number}", 0.0, (number, 0, 900), output=output) for number in range(requests))
    )
    hardware = Hardware(plan, cost_of(plan), Rules(), overlap=overlap)
    return Fleet(hardware, trace, AnyReplica(), 1).play()


def test_a_step_takes_its_stages_and_what_passing_on_takes() -> None:
    """Stages have their part of the overhead. Red if anything of a step belongs to no stage, or to two."""
    cost = cost_of(plan_of(settings=TWO))
    stages = cost.stage_seconds(*STEP, 1)
    assert len(stages) == 2
    assert seconds_of(cost, (900, 1)) == pytest.approx(sum(stages) + cost.passing_seconds(1))
    free = cost_of(plan_of(settings=TWO), overhead=0.0).stage_seconds(*STEP, 1)
    assert [own - less for own, less in zip(stages, free, strict=True)] == pytest.approx([0.5e-3, 0.5e-3])


def test_passing_on_takes_a_message_and_the_bytes_of_each_token() -> None:
    plan = plan_of(settings=TWO)
    cost = cost_model(plan, MODEL, SPEED, link_bytes_per_second=1e9)
    size = 2 * MODEL.hidden_size
    assert cost.passing_seconds(8192) == pytest.approx(MESSAGE_SECONDS + 8192 * size / 1e9)
    alone = cost_of(plan_of())
    assert alone.seconds(*STEP, 1) == sum(alone.stage_seconds(*STEP, 1))


def ends(cost: CostModel, launched: int) -> list[float]:
    """When these steps, launched at once, leave the last stage."""
    recorder, clock = Recorder([asked("one", 0.0, (0, 0, 900))]), VirtualClock()
    recorder.attach({"one": 0}, 1)
    runner = CostRunner(cost, clock, recorder, np.zeros(1, dtype=np.uint64))
    for number in range(launched):
        runner.launch(step(number))
    found = []
    for _ in range(launched):
        runner.collect()
        found.append(clock.now)
    assert runner.busy_seconds == pytest.approx(launched * sum(cost.stage_seconds(*STEP, 1)) / len(cost.stages))
    return found


def test_a_step_enters_a_stage_when_it_is_free_and_the_step_has_arrived() -> None:
    """The first takes all stages; the others follow by the time of the longest one."""
    cost = cost_of(plan_of(settings=Settings(pipeline_parallel=2, stage_layers=(12, 4))))
    stages, passing = cost.stage_seconds(*STEP, 1), cost.passing_seconds(1)
    assert stages[0] > stages[1]
    first = sum(stages) + passing
    assert ends(cost, 3) == pytest.approx([first, first + stages[0], first + 2 * stages[0]])
    lone = cost_of(plan_of())
    assert ends(lone, 2) == pytest.approx([lone.seconds(*STEP, 1), 2 * lone.seconds(*STEP, 1)])


def test_two_stages_serve_more_with_two_steps_in_flight_than_with_one() -> None:
    """With one, each stage is idle for half of the time. Prompts and rows are divided, so both have work."""
    filled, alone = play(2, overlap=2), play(2, overlap=1)
    assert alone.busy_seconds / alone.seconds == pytest.approx(0.5, abs=0.02)
    assert filled.busy_seconds / filled.seconds > 0.8
    assert filled.seconds < 0.7 * alone.seconds
    assert filled.recorder.output_tokens == alone.recorder.output_tokens == 64 * 30


def test_the_command_compares_steps_in_flight_and_names_the_stages(capsys: pytest.CaptureFixture[str]) -> None:
    given = ("simulate", "llama-3.2-1b", "--device", "h200", "--pipeline-parallel", "2", "--requests", "4")
    out, _ = run_text(capsys, *given, "--link-bandwidth", "12.5")
    assert "; 2 stages, 12.5 GB/s from one to the next" in out.splitlines()[1]
    out, _ = run_text(capsys, *given, "--compare", "overlap=1", "--json")
    one, other = json.loads(out)["runs"]
    assert (one["stages"], one["cost"]["link_bytes_per_second"]) == (2, 50e9)
    assert one["steps"] > other["steps"]
