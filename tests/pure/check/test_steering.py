"""Steered threads: one runs at a time, each pause ends when its time has come, and nothing that fails is lost."""

from __future__ import annotations

import math

import pytest

from quire.check.steering import Steering


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_an_action_goes_on_when_its_pause_is_over_and_others_meanwhile() -> None:
    clock, noted = Clock(), []
    steering = Steering(clock)
    threads = steering.threads(2, "two")

    def action(name: str, seconds: float) -> None:
        noted.append(f"{name} begins")
        steering.pause(seconds)
        noted.append(f"{name} ends")

    threads.submit(lambda: action("slow", 3))
    threads.submit(lambda: action("quick", 1))
    assert noted == []
    for _ in range(4):
        steering.run()
        clock.now += 1
    assert noted == ["slow begins", "quick begins", "quick ends", "slow ends"]
    assert steering.is_idle


def test_what_was_submitted_to_one_thread_waits_for_its_turn() -> None:
    """Of two actions for one thread the second begins when the first has ended, even if that takes for ever."""
    clock, noted = Clock(), []
    steering = Steering(clock)
    threads = steering.threads(1, "one")
    threads.submit(lambda: (steering.pause(math.inf), noted.append("first")))
    threads.submit(lambda: noted.append("second"))
    clock.now = 1e9
    steering.run()
    assert noted == []
    assert not steering.is_idle
    steering.finish()
    assert noted == ["first", "second"]
    assert steering.is_idle


def test_an_action_that_fails_is_a_finding() -> None:
    steering = Steering(Clock())
    steering.threads(1, "one").submit(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        steering.run()
    assert steering.is_idle


def test_outside_of_an_action_nothing_pauses() -> None:
    steering = Steering(Clock())
    steering.pause(math.inf)
    assert not steering.is_in_task
