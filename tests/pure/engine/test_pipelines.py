"""Steps in flight on a pipeline: they share no row that generates and have equal shares, so that every stage works."""

from __future__ import annotations

from itertools import pairwise

import pytest

from quire.core.step import SAMPLED, Step, StepResult
from quire.engine.engine import Engine
from quire.explain.request import explain
from quire.explain.room import ask
from shadow import ShadowRunner, token_for
from small_engines import request, run, small_plan

SHEETS = 4000
"""Room for everything."""


class Watched(ShadowRunner):
    """Keeps the steps, and which were in flight when each result was waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self.waits: list[list[Step]] = []

    def launch(self, step: Step) -> None:
        self.steps.append(step)
        super().launch(step)

    def collect(self) -> StepResult:
        self.waits.append(self.steps[len(self.waits) :])
        return super().collect()


def engine_of(stages: int, overlap: int = 2, *, rows: int = 8, budget: int = 64) -> tuple[Engine, Watched]:
    runner = Watched()
    plan = small_plan(["full", "window"], SHEETS, rows=rows, budget=budget, stages=stages)
    engine = Engine(plan, runner, overlap=overlap)
    runner.attach(engine.scheduler)
    return engine, runner


@pytest.mark.parametrize(("stages", "overlap", "in_flight"), [(2, 2, 2), (3, 2, 3), (2, 3, 3), (3, 1, 1), (1, 2, 2)])
def test_a_step_for_each_stage_is_in_flight(stages: int, overlap: int, in_flight: int) -> None:
    """More if the engine is asked for more; one if it is asked for one. Red if stages wait for one another's steps."""
    engine, runner = engine_of(stages, overlap)
    for number in range(6):
        engine.submit(request(f"r{number}", 5, 20))
    run(engine, 300)
    counts = [len(steps) for steps in runner.waits]
    assert max(counts) == in_flight
    assert counts.count(in_flight) > len(counts) * 0.8


@pytest.mark.parametrize(("stages", "rows", "parts"), [(2, 8, {4}), (3, 8, {2, 3}), (2, 7, {3, 4})])
def test_rows_that_generate_are_divided_evenly_among_steps_in_flight(stages: int, rows: int, parts: set[int]) -> None:
    """No row is in two of them, and every row advances as often as any other. Red if one step takes all rows."""
    engine, runner = engine_of(stages, rows=rows)
    for number in range(rows):
        engine.submit(request(f"r{number}", 1 + number, 40))
    while engine.running() or len(engine.scheduler.queue):
        engine.step()
        outputs = [len(stream.tokens()) for stream in engine.running()]
        if len(outputs) == rows and min(outputs) > 2:
            assert {len(step.rows) for step in runner.waits[-1]} <= parts
            assert max(outputs) - min(outputs) <= 1
    for in_flight in runner.waits:
        together = [row for step in in_flight for row, samples in zip(step.rows, step.samples, strict=True) if samples]
        assert len(together) == len(set(together))


def test_a_step_of_a_pipeline_names_every_token() -> None:
    """Its first stage computes before the last one has sampled. On one stage rows go on from tokens in flight."""
    for stages in (1, 2):
        engine, runner = engine_of(stages)
        streams = [engine.submit(request(f"r{number}", 30 + number, 20)) for number in range(4)]
        run(engine, 300)
        assert any((step.token_ids == SAMPLED).any() for step in runner.steps) == (stages == 1)
        for stream in streams:
            first = len(stream.request.prompt)
            assert stream.tokens().tolist() == [token_for(stream.request.name, first + place) for place in range(20)]


@pytest.mark.parametrize(
    ("stages", "prompt", "counts"), [(2, 128, [32, 32]), (2, 100, [25, 25]), (3, 41, [14, 14, 13])]
)
def test_a_prompt_is_divided_among_steps_in_flight(stages: int, prompt: int, counts: list[int]) -> None:
    """Into equal chunks, with at most a step's tokens in flight, here 64. Red if one step takes as much as it may."""
    engine, runner = engine_of(stages)
    engine.submit(request("alone", prompt, 2))
    run(engine, 50)
    assert [step.tokens for step in runner.waits[0]] == counts


def test_a_short_prompt_is_not_divided() -> None:
    """Chunks have at least a thirty-second of a step's tokens: a smaller step reads the same weights."""
    engine, runner = engine_of(2, budget=640)
    engine.submit(request("short", 25, 2))
    run(engine, 50)
    assert [step.tokens for step in runner.steps[:2]] == [20, 5]


def test_the_oldest_request_is_in_the_first_step_after_its_result() -> None:
    """Whatever the others do: the promise of progress."""
    engine, runner = engine_of(3, rows=4)
    engine.submit(request("oldest", 9, 30))
    for number in range(9):
        engine.submit(request(f"r{number}", 60, 20, priority=1))
    row = None
    while "oldest" in engine.streams:
        engine.step()
        row = engine.scheduler.rows.row_of.get("oldest", row)
        own = [step.number for step in runner.steps if row in step.rows]
    assert all(later - earlier <= 3 for earlier, later in pairwise(own))


def test_the_bound_on_steps_counts_the_steps_in_flight() -> None:
    """A token of the oldest request takes as many steps as there are stages. Red if it counts what was asked for."""
    engine, runner = engine_of(3, rows=1)
    engine.submit(request("oldest", 10, 10))
    engine.submit(request("next", 10, 10))
    answer, waiting = ask(engine, request("later", 10, 10)), explain(engine, "next")
    assert (answer.most_steps, waiting.steps if waiting else None) == (3 * 40, 3 * 20)
    run(engine, 300)
    assert len(runner.steps) <= 3 * 40
