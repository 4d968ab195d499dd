"""The question whether there is room: exact where it can be, a bound where not, and without any effect."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from quire.core.request import Request
from quire.core.rules import Rules
from quire.core.sampling import Sampling
from quire.explain.room import Room, ask
from small_engines import LENGTH, engine_for, request, run, small_plan

UNIT_PROMPT = 150


def test_an_idle_engine_has_room_at_once_and_nothing_to_reuse() -> None:
    engine, _ = engine_for(small_plan(["full"], None))
    assert ask(engine, request("a", 20, 4)) == Room(True, False, 20)


def test_a_request_that_could_never_run_does_not_fit_and_is_told_nothing_else() -> None:
    engine, _ = engine_for(small_plan(["full"], None))
    engine.submit(request("b", 30, 4))
    assert ask(engine, request("a", LENGTH, 10)) == Room(False, False, LENGTH)


@pytest.mark.parametrize("names", [["full"], ["full", "window"], ["full", "state"]])
def test_what_it_says_of_reuse_is_what_the_same_request_then_finds(names: list[str]) -> None:
    engine, _ = engine_for(small_plan(names, 64))
    engine.submit(request("first", UNIT_PROMPT, 10))
    run(engine, 500)
    again = Request(
        "again", np.concatenate([request("first", UNIT_PROMPT, 10).prompt, np.arange(9, dtype=np.int32)]), 4
    )
    told = ask(engine, again)
    assert told.pool_tokens > 0
    engine.submit(again)
    engine.step()
    (admitted,) = [one for one in engine.history.of("again") if one.name == "admitted"]
    assert admitted.numbers["hit_tokens"] == told.pool_tokens == told.reused_tokens


def test_prefixes_of_another_scope_and_of_prompts_with_log_probabilities_are_not_found() -> None:
    engine, _ = engine_for(small_plan(["full"], 64))
    engine.submit(request("first", UNIT_PROMPT, 10, scope="alice"))
    run(engine, 500)
    prompt = request("first", UNIT_PROMPT, 10).prompt
    assert ask(engine, Request("x", prompt, 4, scope="alice")).pool_tokens > 0
    assert ask(engine, Request("x", prompt, 4, scope="bob")) == ask(engine, Request("x", prompt + 7, 4, scope="bob"))
    chosen = Sampling(prompt_logprobs=1)
    assert ask(engine, Request("x", prompt, 4, scope="alice", sampling=chosen)).reused_tokens == 0


def test_what_a_running_request_computes_is_coming_and_stands_ahead() -> None:
    engine, _ = engine_for(small_plan(["full"], 64, budget=8))
    engine.submit(request("first", UNIT_PROMPT, 10))
    engine.step()
    told = ask(engine, Request("x", request("first", UNIT_PROMPT, 10).prompt, 4))
    assert told.pool_tokens == 0
    assert told.coming_tokens > 0
    assert (told.running, told.waiting) == (1, 0)
    assert told.tokens_ahead == UNIT_PROMPT - 8


def test_it_starts_within_the_steps_that_it_was_told_whatever_arrives_after_it() -> None:
    engine, _ = engine_for(small_plan(["full"], None, rows=2))
    for number in range(5):
        engine.submit(request(f"before-{number}", 60, 20))
    for _ in range(7):
        engine.step()
    most = ask(engine, request("asked", 30, 4)).most_steps
    begin = engine.scheduler.steps
    engine.submit(request("asked", 30, 4))
    for number in range(5):
        engine.submit(request(f"after-{number}", 60, 20, priority=9))
    while not [one for one in engine.history.of("asked") if one.name == "admitted"]:
        engine.step()
    assert 0 < engine.scheduler.steps - begin <= most


def test_a_full_queue_is_said() -> None:
    engine, _ = engine_for(small_plan(["full"], None, rows=1), rules=Rules(queue_bound=1))
    engine.submit(request("a", 20, 4))
    engine.step()
    assert not ask(engine, request("x", 20, 4)).is_queue_full
    engine.submit(request("b", 20, 4))
    assert ask(engine, request("x", 20, 4)).is_queue_full


def test_asking_changes_nothing() -> None:
    """Two engines get the same requests, and one is asked before every step: both do the same."""
    told = []
    for is_asked in (False, True):
        engine, _ = engine_for(small_plan(["full", "window"], None, rows=3))
        steps = []
        for number in range(8):
            engine.submit(request(f"r{number}", 40 + 7 * number, 12, shared=32))
        while engine.step():
            if is_asked:
                ask(engine, request("r3", 61, 9, shared=32))
            keys = sorted(key for key, _ in engine.scheduler.reuse.index.nodes.items())
            steps.append((engine.scheduler.steps, keys, dict(engine.counters.events)))
        told.append(pickle.dumps(steps))
    assert told[0] == told[1]
