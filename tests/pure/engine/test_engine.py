"""The engine on a runner that checks every read: progress, books, and tokens that do not depend on the company."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from quire.core.errors import InputError, NeverFits, QueueFull
from quire.core.reasons import Why
from quire.core.request import Ending, Request
from quire.core.rules import Rules
from quire.core.step import Step, StepResult
from quire.engine.engine import Engine
from shadow import ShadowRunner, token_for
from small_engines import LENGTH, check, engine_for, is_empty, request, run, small_plan
from small_kinds import KINDS

names_of_kinds = st.lists(st.sampled_from(sorted(set(KINDS) - {"cross"})), min_size=1, max_size=4, unique=True)
work = st.lists(
    st.tuples(st.integers(1, 150), st.integers(1, 60), st.integers(0, 2), st.integers(0, 150)), min_size=1, max_size=9
)


@examples(60)
@given(names_of_kinds, work, st.integers(0, 2), st.integers(1, 3), st.sampled_from([3, 17, 64]), st.integers(1, 3))
def test_everyone_finishes_in_the_smallest_pool_with_the_right_tokens(
    names: list[str], work: list[tuple[int, int, int, int]], lookahead: int, overlap: int, budget: int, stages: int
) -> None:
    """A pool for one request of the longest length, many requests, any priorities: all end, nothing is held after the
    last, and every request yields what it would have yielded alone."""
    plan = small_plan(names, None, lookahead=lookahead, budget=budget, stages=min(stages, len(names)))
    engine, _ = engine_for(plan, overlap)
    streams = [
        engine.submit(request(f"r{i}", prompt, outputs, shared, priority=priority))
        for i, (prompt, outputs, priority, shared) in enumerate(work)
    ]
    run(engine, 3 * sum(prompt + outputs for prompt, outputs, *_ in work) + 10)
    for stream in streams:
        first = len(stream.request.prompt)
        expected = [token_for(stream.request.name, first + i) for i in range(stream.request.max_tokens)]
        assert stream.tokens().tolist() == expected
        assert stream.ending is Ending.LENGTH
    assert is_empty(engine)


@examples(40)
@given(st.data(), names_of_kinds, work)
def test_cancelling_at_any_moment_leaves_nothing_behind(
    data: st.DataObject, names: list[str], work: list[tuple[int, int, int, int]]
) -> None:
    engine, _ = engine_for(small_plan(names, None))
    for i, (prompt, outputs, _, shared) in enumerate(work):
        engine.submit(request(f"r{i}", prompt, outputs, shared))
    for _ in range(data.draw(st.integers(0, 30), "steps")):
        engine.step()
        victim = data.draw(st.integers(0, len(work) - 1), "victim")
        if data.draw(st.booleans(), "cancel"):
            engine.cancel(f"r{victim}")
        check(engine)
    engine.close()
    assert is_empty(engine)
    assert engine.scheduler.is_idle()


class Faulty(ShadowRunner):
    """Fails when told to: before it has done anything, with a step half done, behind it, or with its result in hand."""

    fault = ""

    def launch(self, step: Step) -> None:
        if self.fault == "after the copies":
            self._copy(step)
        self._fail("at once", "after the copies")
        super().launch(step)
        self._fail("when it was done")

    def collect(self) -> StepResult:
        result = super().collect()
        self._fail("with the result")
        return result

    def _fail(self, *places: str) -> None:
        if self.fault in places:
            place, self.fault = self.fault, ""
            raise KeyboardInterrupt(place)


@examples(60)
@given(st.data(), names_of_kinds, work, st.integers(1, 3))
def test_a_step_that_fails_ends_those_who_run_and_nobody_else(
    data: st.DataObject, names: list[str], work: list[tuple[int, int, int, int]], overlap: int
) -> None:
    """However far it came: the books balance, nobody reads what was not written, who waited and who comes next gets
    the right tokens."""
    runner = Faulty()
    engine = Engine(small_plan(names, None), runner, overlap=overlap)
    runner.attach(engine.scheduler)
    faults = ["", "", "at once", "after the copies", "when it was done", "with the result"]
    streams = []
    for i, (prompt, outputs, _, shared) in enumerate(work * 2):
        streams.append(engine.submit(request(f"r{i}", prompt, outputs, shared)))
        for _ in range(data.draw(st.integers(0, 8), "steps")):
            runner.fault = data.draw(st.sampled_from(faults), "fault")
            try:
                engine.step()
            except KeyboardInterrupt:
                assert not engine.running()
                assert set(engine.streams) == {waiting.request.name for waiting in engine.scheduler.queue}
            check(engine)
    runner.fault = ""
    run(engine, 6 * sum(prompt + outputs for prompt, outputs, *_ in work) + 10)
    for stream in streams:
        first, yielded = len(stream.request.prompt), stream.tokens().tolist()
        assert stream.ending is (Ending.CANCELLED if stream.failure else Ending.LENGTH)
        assert len(yielded) == stream.request.max_tokens or stream.failure
        assert yielded == [token_for(stream.request.name, first + i) for i in range(len(yielded))]
    assert is_empty(engine)


@pytest.mark.parametrize("steps", range(8))
def test_what_a_failed_step_should_have_copied_is_found_by_nobody(steps: int) -> None:
    """The step behind the one that reached a checkpoint copies it: whichever fails, nobody goes on from a hole."""
    runner = Faulty()
    engine = Engine(small_plan(["full", "state"], 64), runner)
    runner.attach(engine.scheduler)
    engine.submit(request("first", 150, 4, shared=150))
    for _ in range(steps):
        engine.step()
    runner.fault = "at once"
    with pytest.raises(KeyboardInterrupt):
        engine.drain()
    again = engine.submit(request("again", 150, 4, shared=150))
    run(engine, 100)
    assert again.ending is Ending.LENGTH


def test_a_request_that_never_fits_is_told_at_once_and_holds_up_nobody() -> None:
    """Refused within the call, with the numbers; ten short requests queued behind it finish."""
    engine, _ = engine_for(small_plan(["full", "window"], None))
    with pytest.raises(NeverFits, match=r"220 \+ 1 tokens can never run: the longest that fits is 220 tokens"):
        engine.submit(request("long", LENGTH, 1))
    streams = [engine.submit(request(f"short{i}", 20, 5)) for i in range(10)]
    run(engine, 2000)
    assert all(stream.ending is Ending.LENGTH for stream in streams)


@pytest.mark.parametrize("names", [["full"], ["window"], ["full", "window", "state"], ["chunked", "full"]])
def test_admission_equals_sizing(names: list[str]) -> None:
    """accepts(L) on an empty pool exactly where L is at most the advertised length."""
    plan = small_plan(names, None)
    engine, _ = engine_for(plan)
    engine.submit(request("fits", plan.max_length - 1, 1))
    with pytest.raises(NeverFits):
        engine.submit(request("never", plan.max_length, 1))
    run(engine, 1000)


def test_the_elder_goes_first_whatever_the_priority() -> None:
    """Progress: the k-th oldest finishes within the sum of the tokens of the k oldest."""
    engine, _ = engine_for(small_plan(["full"], None, rows=2))
    old = engine.submit(request("old", 100, 60))
    for i in range(6):
        engine.submit(request(f"urgent{i}", 100, 60, priority=9))
    steps = 0
    while old.ending is None:
        engine.step()
        steps += 1
        assert steps <= 160 + 2


def test_a_small_request_passes_a_large_one_that_cannot_start_yet() -> None:
    """The large one at the head of the queue waits with a reason, and runs when it can."""
    plan = small_plan(["full"], 5, rows=4)
    engine, _ = engine_for(plan)
    first = engine.submit(request("first", 150, 50))
    engine.step()
    large, small = engine.submit(request("large", 150, 50)), engine.submit(request("small", 10, 5))
    while small.ending is None:
        engine.step()
        check(engine)
    assert large.ending is None
    waiting = engine.scheduler.queue.find("large")
    assert waiting is not None
    assert waiting.reason.code is Why.MEMORY
    run(engine, 1000)
    assert first.ending is large.ending is Ending.LENGTH


def test_stop_tokens_end_a_request_and_late_results_are_dropped() -> None:
    """With two steps in flight a token past the end is computed and thrown away."""
    stop = token_for("talk", 23)
    engine, _ = engine_for(small_plan(["full", "window"], 40))
    stream = engine.submit(request("talk", 20, 40, stop_tokens=(stop,)))
    run(engine, 200)
    assert stream.ending is Ending.STOP
    assert stream.tokens().tolist() == [token_for("talk", position) for position in range(20, 24)]


def test_a_name_is_given_once_at_a_time_and_prompts_are_not_empty() -> None:
    engine, _ = engine_for(small_plan(["full"], 40))
    engine.submit(request("same", 20, 3))
    with pytest.raises(InputError, match="named same is running"):
        engine.submit(request("same", 20, 3))
    run(engine, 50)
    engine.submit(request("same", 20, 3))
    for prompt, outputs, stops in ((0, 1, ()), (1, 0, ()), (1, 1, tuple(range(9)))):
        with pytest.raises(InputError):
            request("bad", prompt, outputs, stop_tokens=stops)


def test_streams_hand_out_each_token_once() -> None:
    engine, _ = engine_for(small_plan(["full"], 40))
    stream = engine.submit(request("talk", 20, 30))
    taken: list[int] = []
    while engine.step():
        taken += stream.take().tolist()
    taken += stream.take().tolist()
    assert taken == [token_for("talk", 20 + i) for i in range(30)]


def test_a_deadline_ends_a_request_wherever_it_is() -> None:
    now = [0.0]
    engine, _ = engine_for(small_plan(["full"], None), clock=lambda: now[0])
    runs = engine.submit(request("runs", 100, 60, deadline=5.0))
    waits = engine.submit(request("waits", 100, 60, deadline=5.0))
    engine.step()
    now[0] = 6.0
    run(engine, 10)
    assert runs.ending is waits.ending is Ending.DEADLINE
    assert is_empty(engine)


def test_the_deadline_of_a_request_that_has_ended_is_not_that_of_the_next_with_its_name() -> None:
    now = [0.0]
    engine, _ = engine_for(small_plan(["full"], 40), clock=lambda: now[0])
    first = engine.submit(request("talk", 20, 2, deadline=5.0))
    run(engine, 10)
    second = engine.submit(request("talk", 20, 4))
    now[0] = 6.0
    run(engine, 10)
    assert first.ending is second.ending is Ending.LENGTH


def test_a_full_queue_says_so_and_takes_back_the_preempted() -> None:
    engine, _ = engine_for(small_plan(["full"], None), rules=Rules(queue_bound=2))
    for i in range(2):
        engine.submit(request(f"r{i}", 100, 60))
    with pytest.raises(QueueFull, match="2 requests wait already"):
        engine.submit(request("r2", 10, 5))
    run(engine, 2000)


def test_preemption_and_compaction_really_happen_here() -> None:
    """The laws above would be empty if the pool were never short."""
    events: list[str] = []
    plan = small_plan(["window", "chunked", "full"], None, budget=64)
    engine, runner = engine_for(plan, listeners=[lambda event: events.append(event.name)])
    engine.scheduler.admission.typical_output = 1.0
    for i in range(6):
        engine.submit(request(f"r{i}", 30 + 17 * i, 60))
    run(engine, 5000)
    assert "preempted" in events
    assert runner.reads > 1000


REUSABLE = [
    *(["full"], ["window"], ["full", "window"], ["chunked", "full"], ["sink", "full"]),
    *(["state"], ["state", "full"], ["state", "window", "full"]),
]


@pytest.mark.parametrize("names", REUSABLE)
def test_a_prompt_that_came_before_is_not_computed_again(names: list[str]) -> None:
    """All but the last unit of it is found, whatever the mix of kinds, and the tokens are those of a cold run."""
    engine, _ = engine_for(small_plan(names, 200))
    unit = engine.scheduler.reuse.index.unit
    first = engine.submit(request("same", 150, 5))
    run(engine, 100)
    engine.submit(Request("again", first.request.prompt, 5))
    engine.step()
    row = engine.scheduler.rows.row_of["again"]
    assert engine.scheduler.running.tickets[row].hit_tokens == 149 // unit * unit > 0
    run(engine, 100)
    assert is_empty(engine)


@pytest.mark.parametrize("names", REUSABLE)
def test_a_turn_that_goes_on_finds_what_the_last_one_left(names: list[str]) -> None:
    """The next turn's prompt is the last one's prompt and answer, and a little more."""
    engine, _ = engine_for(small_plan(names, 200))
    unit = engine.scheduler.reuse.index.unit
    first = engine.submit(request("turn", 70, 75))
    run(engine, 200)
    whole = np.concatenate([first.request.prompt, first.tokens(), np.array([1, 2, 3], dtype=np.int32)])
    engine.submit(Request("turn", whole, 5))
    engine.step()
    row = engine.scheduler.rows.row_of["turn"]
    assert engine.scheduler.running.tickets[row].hit_tokens == (144 if names != ["full"] else 144 // unit * unit)


def test_scopes_do_not_see_each_other() -> None:
    """Same prompt, two scopes: no hit; same scope: a hit."""
    engine, _ = engine_for(small_plan(["full", "window"], 200))
    prompt = request("first", 150, 5).prompt
    hits = []
    for name, scope in (("a", "one"), ("b", "two"), ("c", "one")):
        engine.submit(Request(name, prompt, 5, scope=scope))
        engine.step()
        hits.append(engine.scheduler.running.tickets[engine.scheduler.rows.row_of[name]].hit_tokens > 0)
        run(engine, 100)
    assert hits == [False, False, True]


def test_a_miss_says_why() -> None:
    engine, _ = engine_for(small_plan(["full", "window"], 200))
    cases = (("first", 3, Why.NO_OVERLAP), ("new", 150, Why.NO_OVERLAP), ("short", 3, Why.BELOW_UNIT))
    for name, length, miss in cases:  # in an empty cache, nothing begins alike
        engine.submit(request(name, length, 2))
        engine.step()
        assert engine.scheduler.running.tickets[engine.scheduler.rows.row_of[name]].miss is miss
        run(engine, 20)
    crossing, _ = engine_for(small_plan(["cross", "full"], 60))
    assert "depends on more than the tokens" in crossing.scheduler.reuse.index.disabled


def test_the_cache_gives_way_before_anyone_is_preempted() -> None:
    """A pool full of cached prefixes takes a new request as if it were empty."""
    events: list[str] = []
    smallest = small_plan(["full", "window"], None).stages[0].sheets
    engine, _ = engine_for(
        small_plan(["full", "window"], smallest + 4),
        listeners=[lambda event: events.append(event.name)],
    )
    for i in range(8):
        engine.submit(request(f"r{i}", 150, 60))
        run(engine, 500)
    assert "preempted" not in events
    assert 0 < len(engine.scheduler.reuse.index.nodes) < 8 * 209 // engine.scheduler.reuse.index.unit


def test_the_index_does_not_grow_with_hits() -> None:
    """The same prompt again and again leaves as many nodes, and a bounded list of leaves."""
    engine, _ = engine_for(small_plan(["full", "window"], 200))
    index = engine.scheduler.reuse.index
    prompt = request("first", 150, 1).prompt
    sizes = set()
    for i in range(200):
        engine.submit(Request(f"r{i}", prompt, 1))
        engine.drain()
        sizes.add(len(index.nodes))
    assert len(sizes) == 1
    assert len(index.eviction._ranked) <= 2 * len(index.nodes) + len(index.boundaries.groups) + 64
