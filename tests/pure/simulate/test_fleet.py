"""Replicas on virtual time: each with a clock, a pool and a queue of its own, behind one router."""

from __future__ import annotations

import numpy as np
import pytest
from small_replay import asked, cost_of, plan_of

from command import refused, run_text
from quire.core.rules import Rules
from quire.route.policies import POLICIES
from quire.simulate.replay import Fleet, Played, Replay
from quire.simulate.replica import Hardware
from quire.simulate.report import report
from quire.simulate.synthetic import make_trace
from quire.simulate.traces import Asked, Trace


def play(replicas: int, policy: str, *requests: Asked, pool_bytes: int = 1 << 30) -> Played:
    plan = plan_of(pool_bytes)
    return Fleet(Hardware(plan, cost_of(plan), Rules()), Trace("test", requests), POLICIES[policy](), replicas).play()


def test_a_fleet_of_one_is_the_simulation_without_a_router() -> None:
    plan, trace = plan_of(1 << 28), make_trace("chat", 25, 3)
    alone = report(Replay(plan, cost_of(plan), trace, Rules()).play())
    assert report(Fleet(Hardware(plan, cost_of(plan), Rules()), trace, POLICIES["ask"](), 1).play()) == alone


def test_two_requests_at_once_take_as_long_on_two_replicas_as_one_alone() -> None:
    prompts = (asked("a", 0.0, (1, 0, 4000)), asked("b", 0.0, (2, 0, 4000)))
    alone, both = play(1, "round-robin", prompts[0]), play(2, "round-robin", *prompts)
    waits = both.recorder.first - both.recorder.arrived
    assert list(waits) == pytest.approx([float(alone.recorder.first[0])] * 2)
    assert both.routed == (1, 1)
    assert both.seconds == alone.seconds


def test_a_replica_finds_what_it_computed_and_not_what_another_did() -> None:
    turns = (asked("a", 0.0, (1, 0, 1000)), asked("b", 5.0, (1, 0, 1000)), asked("c", 10.0, (1, 0, 1000)))
    assert list(play(2, "round-robin", *turns).recorder.hit_tokens > 0) == [False, False, True]
    assert list(play(2, "most-reused", *turns).recorder.hit_tokens > 0) == [False, True, True]


@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_is_played_once_and_the_same_way_again(policy: str) -> None:
    trace = make_trace("chat", 30, 1).requests
    first, again = (play(3, policy, *trace, pool_bytes=1 << 28) for _ in range(2))
    assert sum(first.routed) == len(trace)
    assert first.recorder.output_tokens == sum(one.output_tokens for one in trace)
    assert not np.isnan(first.recorder.last).any()
    assert report(first) == report(again)


def test_the_command_plays_replicas_and_says_how_many_requests_each_got(capsys: pytest.CaptureFixture[str]) -> None:
    base = ["simulate", "llama-3.2-1b", "--device", "h100", "--requests", "12", "--replicas", "2"]
    out, _ = run_text(capsys, *base, "--router", "round-robin", "--compare", "router=session")
    assert "on 2 replicas, each 1 × h100" in out
    assert "requests by replica, least / most" in out
    assert "6 / 6" in out


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--replicas", "0"], "out of range"),
        (["--replicas", "257"], "give at most 256"),
        (["--router", "random"], "invalid choice"),
    ],
)
def test_bad_replicas_and_routers_are_refused_in_one_line(
    given: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in refused(capsys, "simulate", "llama-3.2-1b", "--device", "h100", *given)
