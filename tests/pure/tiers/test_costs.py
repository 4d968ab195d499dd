"""How a preempted request comes back: both costs from measurements, the lesser chosen, and the choice told."""

from __future__ import annotations

import numpy as np
import pytest

from quire.check.promises import check_nothing_left
from quire.core.events import Event, LoadFinished, LoadStarted, RequestPreempted
from quire.core.reasons import WayBack
from quire.core.request import Ending, Request
from quire.core.step import Step
from quire.core.tier import Blocks
from quire.engine.engine import Engine
from quire.explain.request import explain
from quire.explain.sentences import way, why
from quire.plan.records import Records
from quire.tiers.costs import RateMeter, StepMeter
from quire.tiers.stack import Stack
from scenes_of_tiers import LAYOUT, Bytes, CheckingRunner, small_plan


@pytest.mark.parametrize(
    ("load", "compute", "is_load"),
    [(0.1, 0.2, True), (0.2, 0.1, False), (0.1, 0.1, True), (None, 0.1, True), (0.1, None, True), (None, None, True)],
)
def test_the_cheaper_way_is_taken_and_what_is_not_measured_is_tried(
    load: float | None, compute: float | None, is_load: bool
) -> None:
    assert WayBack(100, 1 << 20, load, compute).is_load is is_load


def test_a_choice_is_told_with_both_costs() -> None:
    back = WayBack(1000, 3 << 20, 0.002, 0.5)
    assert way(back) == (
        "its 1,000 tokens will be loaded from the tier: loading 3.00 MiB takes 2 ms, computing them takes 500 ms"
    )
    assert back.numbers == {"to_tier": 1, "load_microseconds": 2000, "compute_microseconds": 500_000}
    assert "computed again" in way(WayBack(1000, 3 << 20, 0.7, 0.5))
    assert "not measured yet" in way(WayBack(1000, 3 << 20, None, 0.5))


def test_a_rate_follows_what_was_measured_last() -> None:
    meter = RateMeter()
    assert meter.seconds_for(100) is None
    meter.note(1000, 1.0)
    assert meter.seconds_for(500) == pytest.approx(0.5)
    for _ in range(100):
        meter.note(1000, 4.0)
    assert meter.seconds_for(500) == pytest.approx(2.0, rel=1e-3)


def test_steps_of_unequal_size_tell_overhead_and_tokens_apart() -> None:
    """0.01 s a step and 1 ms a token: decode steps of few tokens do not make recomputing look dear."""
    meter = StepMeter()
    assert meter.seconds_for(100, 64) is None
    for tokens in (1, 2, 4, 64, 3, 1, 32):
        meter.note(tokens, 0.01 + 0.001 * tokens)
    assert meter.seconds_for(640, 64) == pytest.approx(10 * 0.01 + 0.64)


def test_steps_that_are_all_alike_count_by_their_tokens() -> None:
    meter = StepMeter()
    for _ in range(5):
        meter.note(8, 0.016)
    assert meter.seconds_for(100, 64) == pytest.approx(0.2)


class World:
    """Requests that outgrow the pool together, a clock that the runner moves, and a stack whose copies take time."""

    def __init__(self, names: list[str], token_seconds: float, byte_seconds: float, sheets: int) -> None:
        plan = small_plan(names, sheets)
        records = Records(plan)
        memory = Bytes(200, records.block_bytes)
        self.now, self.told = 0.0, list[Event]()
        self.stack = Stack(records, memory, [], LAYOUT, lambda: self.now)
        world = self

        class Runner(CheckingRunner):
            def launch(self, step: Step) -> None:
                super().launch(step)
                world.now += token_seconds * step.tokens

            def _compare(self, name: bytes, blocks: Blocks, size: int) -> None:
                world.now += byte_seconds * size
                super()._compare(name, blocks, size)

        self.engine = Engine(
            plan,
            Runner(plan, self.stack, memory),
            tier=self.stack,
            keeper=self.stack,
            clock=lambda: self.now,
            pause=lambda: None,
            listeners=[self.told.append],
        )

    def run(self, count: int = 3) -> None:
        """Twice: the first time measures what loads take."""
        for turn in range(2):
            self.engine.scheduler.admission.typical_output = 1.0  # so that they are let in beside each other
            streams = [
                self.engine.submit(
                    Request(f"{turn}.{one}", np.arange(1000 * one, 1000 * one + 37 + 3 * one, dtype=np.int32), 60)
                )
                for one in range(count)
            ]
            self.engine.drain()
            assert all(stream.ending is Ending.LENGTH for stream in streams)

    def events(self, what: type[Event]) -> list[Event]:
        return [event for event in self.told if isinstance(event, what)]


SMALL = {"full window": 36, "full state": 9}
"""Sheets in which three of them begin and cannot all end."""


@pytest.mark.parametrize("names", SMALL)
def test_a_preempted_request_goes_to_the_tier_where_copies_are_quick(names: str) -> None:
    """It comes back with all that it had computed, be it in the middle of a unit."""
    world = World(names.split(), token_seconds=1.0, byte_seconds=1e-9, sheets=SMALL[names])
    world.run()
    sent = world.events(RequestPreempted)
    measured = [event for event in sent if "load_microseconds" in event.numbers]
    assert measured, "nobody was sent away after a load was measured"
    assert all(event.numbers["to_tier"] == 1 for event in sent)
    assert all(e.numbers["load_microseconds"] < e.numbers["compute_microseconds"] for e in measured)
    assert any(event.tokens % 8 for event in world.events(LoadFinished))
    check_nothing_left(world.engine.scheduler)


@pytest.mark.parametrize("names", SMALL)
def test_a_preempted_request_is_computed_again_where_copies_are_slow(names: str) -> None:
    world = World(names.split(), token_seconds=1e-6, byte_seconds=1.0, sheets=SMALL[names])
    world.run()
    measured = [event for event in world.events(RequestPreempted) if "load_microseconds" in event.numbers]
    assert measured, "nobody was sent away after a load was measured"
    assert all(event.numbers["to_tier"] == 0 for event in measured)
    assert "will be computed again" in way(measured[-1].way_back)
    last = world.told.index(measured[0])
    loaded = {event.request for event in world.told[last:] if isinstance(event, LoadStarted)}
    assert not loaded & {event.request for event in measured}
    check_nothing_left(world.engine.scheduler)


def test_who_asks_why_is_told_the_way_back() -> None:
    world = World(["full", "window"], token_seconds=1.0, byte_seconds=1e-9, sheets=36)
    world.engine.scheduler.admission.typical_output = 1.0
    for one in range(3):
        world.engine.submit(Request(f"r{one}", np.arange(1000 * one, 1000 * one + 40, dtype=np.int32), 60))
    while not world.events(RequestPreempted):
        world.engine.step()
    told = explain(world.engine, world.events(RequestPreempted)[0].request)
    assert told is not None
    assert "tokens will be loaded from the tier" in why(told)
    world.engine.drain()
