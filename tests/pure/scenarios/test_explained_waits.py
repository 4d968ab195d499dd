"""A request that waits says why, and when it runs at the latest: that holds, whoever comes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenes import FreeRunner, own_tokens

from examples import examples
from quire.core.events import RequestWaits
from quire.core.reasons import Reason, Why
from quire.core.request import Request, Tokens
from quire.core.rules import Policy, Rules
from quire.core.sampling import Sampling
from quire.core.step import Ints, Step
from quire.engine.engine import Engine
from quire.explain.explanation import Explanation
from quire.explain.request import explain
from quire.explain.sentences import describe
from quire.models.shape import ModelShape
from quire.plan import bound
from quire.plan.make import make_plan
from quire.plan.settings import Budget, Settings
from quire.worker.steps.drafting import DeferredDrafter, verify_drafts
from small_kinds import KINDS

LENGTH = 220


def engine_of(
    kinds: tuple[str, ...] = ("full",),
    *,
    rows: int,
    batch_tokens: int = 64,
    roominess: float = 20.0,
    overlap: int = 1,
    policy: Policy = Policy.PRIORITY,
) -> Engine:
    """`roominess`: sheets, in those that one request of LENGTH needs."""
    shape = ModelShape("small", "test", tuple(KINDS[kind] for kind in kinds), max_length=LENGTH, weights_known=False)
    chosen = Settings(max_requests=rows, batch_tokens=batch_tokens, max_length=LENGTH)
    (stage,) = make_plan(shape, chosen, Budget(pool_bytes=1 << 30)).stages
    sheets = int(bound.minimum(stage.kinds, LENGTH, 0) * roominess)
    plan = make_plan(shape, chosen, Budget(sheets=(sheets,)))
    return Engine(plan, FreeRunner(), overlap=overlap, rules=Rules(policy=policy))


def submit(engine: Engine, name: str, prompt: int, outputs: int, priority: int = 0) -> None:
    tokens = own_tokens(name, prompt)
    engine.submit(Request(name, tokens, outputs, priority=priority, tenant=f"tenant{priority}"))


def explained(engine: Engine, name: str) -> Explanation:
    told = explain(engine, name)
    assert told is not None
    return told


def test_what_waits_for_a_row_says_so_and_how_long_at_most() -> None:
    """Two rows, one of which is soon free, for someone with more priority: the other waits for both to end."""
    engine = engine_of(rows=2)
    submit(engine, "r0", 10, 190)
    submit(engine, "r1", 10, 10)
    engine.step()
    submit(engine, "low", 10, 5)
    submit(engine, "high", 10, 150, priority=1)
    engine.step()
    told = explained(engine, "low")
    assert told.reason == Reason(Why.ROWS, numbers={"rows": 2})
    assert told.steps == 200 + 20 - 11, "all of r0 but what it has computed, and all of r1, who may be sent away"
    ending = "there is room for it when r1 and r0 have ended; it runs within 209 steps, whatever arrives"
    assert describe(told).splitlines()[-1] == ending
    begin = engine.scheduler.steps
    while explained(engine, "low").status == "waiting":
        engine.step()
    assert 150 < engine.scheduler.steps - begin <= told.steps + 1, "the last step is the one that it runs in"
    waits = [event.reason for event in engine.history.of("high") if isinstance(event, RequestWaits)]
    assert waits == [told.reason]


def test_what_waits_for_the_steps_tokens_says_so() -> None:
    engine = engine_of(rows=6, batch_tokens=2)
    for i in range(5):
        submit(engine, f"r{i}", 30, 5)
    engine.step()
    engine.step()
    used_up = Reason(Why.STEP_TOKENS, numbers={"tokens": 2})
    assert explained(engine, "r1").reason == used_up
    assert explained(engine, "r2").reason == Reason(Why.IN_LINE, ("r1",), {"place": 2}, because=used_up)
    assert explained(engine, "r4").reason == Reason(Why.IN_LINE, ("r1",), {"place": 4}, because=used_up)


@pytest.mark.story
@pytest.mark.parametrize("overlap", [1, 2])
def test_what_lacks_memory_does_not_change_its_reason_while_a_long_prompt_takes_the_steps_tokens(overlap: int) -> None:
    """With two steps in flight, every other one has tokens left: the reason was another one after each of them."""
    engine = engine_of(rows=4, batch_tokens=16, roominess=1.2, overlap=overlap)
    for i, prompt in enumerate((150, 150, 60)):
        submit(engine, f"r{i}", prompt, 15)
    while engine.step():
        pass
    waits = {
        i: [one.reason.code for one in engine.history.of(f"r{i}") if isinstance(one, RequestWaits)] for i in (1, 2)
    }
    assert waits == {1: [Why.STEP_TOKENS, Why.MEMORY], 2: [Why.MEMORY]}


def test_the_first_to_come_runs_in_the_next_step() -> None:
    engine = engine_of(rows=2)
    submit(engine, "r0", 10, 5)
    assert describe(explained(engine, "r0")).endswith("it runs in the next step, whatever arrives")
    engine.step()
    assert explained(engine, "r0").status == "running"


class WrongGuesses(DeferredDrafter):
    """One token that never comes true."""

    def propose(self, rows: Ints, counts: Ints, step_tokens: int) -> dict[int, Tokens]:
        del rows, step_tokens
        return {place: np.full(min(count, 1), -7, dtype=np.int32) for place, count in enumerate(counts.tolist())}


class VerifyingRunner(FreeRunner):
    def launch(self, step: Step) -> None:
        self._flying.append(verify_drafts(step, np.zeros(len(step.sample_places()[1]), dtype=np.int64)))


def test_an_elder_that_waits_for_its_guesses_is_counted_with_the_steps_that_others_run_meanwhile() -> None:
    """Its guesses are in flight in every other step; someone else, who does not guess, has a token in each."""
    shape = ModelShape("small", "test", (KINDS["full"],), max_length=LENGTH, weights_known=False)
    chosen = Settings(max_requests=2, batch_tokens=64, max_length=LENGTH, speculative_tokens=1)
    plan = make_plan(shape, chosen, Budget(sheets=(60,)))
    engine = Engine(plan, VerifyingRunner(), drafter=WrongGuesses())
    submit(engine, "elder", 10, 60)
    submit(engine, "waiting", 10, 5)
    engine.submit(Request("quick", own_tokens("quick", 10), 200, priority=1, sampling=Sampling(logprobs=0)))
    engine.step()
    told, begin = explained(engine, "waiting"), engine.scheduler.steps
    while explained(engine, "waiting").status == "waiting":
        engine.step()
    assert 60 + 10 < engine.scheduler.steps - begin <= told.steps + 1 <= 2 * (60 + 10) + 1


@examples(40)
@given(
    st.sampled_from([("full",), ("full", "window"), ("chunked", "full"), ("state", "full", "window")]),
    st.lists(st.tuples(*(st.integers(1, most) for most in (110, 110, 3, 12))), min_size=2, max_size=9),
    st.sampled_from([1.0, 1.5, 3.0, 20.0]),
    st.sampled_from([2, 17, 64]),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from(list(Policy)),
)
def test_nobody_waits_longer_than_was_said(
    kinds: tuple[str, ...],
    work: list[tuple[int, int, int, int]],
    roominess: float,
    batch_tokens: int,
    rows: int,
    overlap: int,
    policy: Policy,
) -> None:
    """Asked again and again, of any work that comes little by little, in any pool: every answer holds."""
    engine = engine_of(kinds, rows=rows, batch_tokens=batch_tokens, roominess=roominess, overlap=overlap, policy=policy)
    latest: dict[str, int] = {}
    for i, (prompt, outputs, priority, steps) in enumerate(work):
        submit(engine, f"r{i}", prompt, outputs, priority)
        for _ in range(steps):
            step_and_ask(engine, latest)
    while not engine.scheduler.is_idle():
        step_and_ask(engine, latest)


def step_and_ask(engine: Engine, latest: dict[str, int]) -> None:
    """Notes before which step each one that waits runs at the latest, and looks that it does."""
    scheduler = engine.scheduler
    for one in scheduler.queue if scheduler.steps % 3 == 0 else ():
        name = one.request.name
        latest[name] = min(latest.get(name, 1 << 60), scheduler.steps + explained(engine, name).steps)
    before = scheduler.steps
    engine.step()
    for name in [name for name in latest if scheduler.queue.find(name) is None]:
        assert before <= latest.pop(name)
    assert all(scheduler.steps <= step for step in latest.values())
