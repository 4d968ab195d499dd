"""A kind that is defined in the test tree alone is planned, scheduled and checked like those of the package."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from pair_kind import Pair, known
from quire.check.campaign import run_campaign
from quire.check.coverage import Mechanism
from quire.check.explore import explore
from quire.check.small import Small
from quire.core.memory import Follows, Memory, Part
from quire.core.request import Request
from quire.core.step import Step, StepResult
from quire.engine.engine import Engine
from quire.kinds import Counts, counts, kind_of
from quire.models.shape import Layer, ModelShape
from quire.plan import bound
from quire.plan.file import decode, encode
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings

PARTS = (Part("key", 1, 64, follows=Follows.KV), Part("value", 1, 64, follows=Follows.KV))
HALF, PAGE, LENGTH = 24, 16, 400


@pytest.fixture(autouse=True)
def _known() -> Iterator[None]:
    with known():
        yield


def pair_memory(half: int = HALF) -> Memory:
    return Memory("pair", PARTS, others=(("half", half),))


def pair_plan(sheets: int = 60) -> Plan:
    layers = (*[Layer((pair_memory(),))] * 3, *[Layer((Memory("full", PARTS),))] * 2)
    model = ModelShape("pairs", "test", layers, max_length=LENGTH, weights_known=False)
    settings = Settings(max_length=LENGTH, max_requests=4, batch_tokens=32, page_tokens={"": PAGE})
    return make_plan(model, settings, Budget(sheets=(sheets,))).require_fit()


def mask(half: int, tokens: int) -> np.ndarray:
    """Query by query, from the definition."""
    query, token = np.arange(tokens)[:, None], np.arange(tokens)[None, :]
    return (token <= query) & (token // half >= query // half - 1)


@pytest.mark.parametrize("half", [1, 7, 16, 24])
def test_its_pages_are_those_that_its_mask_reads(half: int) -> None:
    """With `settled` tokens and one more in flight: the pages of all that this one or a later one reads."""
    kind, tokens = Pair(half), 6 * half + 40
    reads = mask(half, tokens)
    for settled in range(5 * half):
        later = reads[settled:].any(axis=0)
        touched = {token // PAGE for token in range(settled + 1) if later[token] or token == settled}
        assert int(kind.pages(counts(settled), counts(1), counts(0), PAGE)) == len(touched)


def test_what_a_query_sees_is_its_mask() -> None:
    queries, tokens = np.arange(200)[:, None], np.arange(200)[None, :]
    assert (Pair(HALF).sees(queries, tokens) == mask(HALF, 200)).all()


def test_it_is_planned_and_its_plan_can_be_saved() -> None:
    plan = pair_plan()
    assert [kind.name for kind in plan.stages[0].kinds] == ["full", f"pair-{HALF}"]
    assert kind_of(pair_memory()) == Pair(HALF)
    assert plan.stages[0].kinds[1].bytes_per_token == 0, "it does not grow"
    assert decode(encode(plan)) == plan
    assert bound.concurrency(plan, 100) >= 1


class Constant:
    """Every row generates the same token."""

    def __init__(self) -> None:
        self.flying: list[Step] = []

    def launch(self, step: Step) -> None:
        self.flying.append(step)

    def collect(self) -> StepResult:
        step = self.flying.pop(0)
        return StepResult(step.number, np.full(int(step.samples.sum()), 7, dtype=np.int64))


def test_a_long_request_holds_two_chunks_of_it_and_gives_the_rest_back() -> None:
    engine = Engine(pair_plan(), Constant(), overlap=1)
    engine.submit(Request("r", np.arange(200, dtype=np.int32), 150))
    most = 0
    while engine.step():
        held = [len(engine.scheduler.memories[0].tables[1].held(row)) for row in engine.scheduler.running.tickets]
        most = max([most, *held])
    groups = engine.scheduler.plan.stages[0].kinds[1].groups
    assert 0 < most <= groups * (-(-(2 * HALF + 32) // PAGE) + 1)


def test_random_systems_with_it_keep_every_promise() -> None:
    """Prefixes are reused, evicted, loaded and stored, requests preempted, and each page read is the right one."""
    with known(only=("full", "window", "state")):
        campaign = run_campaign(1_500, seed=1)
    assert campaign.failure is None
    done = {mechanism for (kind, mechanism), count in campaign.coverage.mechanisms.items() if kind == "pair" and count}
    assert {Mechanism.HIT, Mechanism.EVICTION, Mechanism.STORE, Mechanism.ACCEPTED} <= done


class Forgetful(Pair):
    """Planted: the chunk before its own is given back too early."""

    def first_live(self, settled: Counts) -> Counts:
        return counts(settled // self.half * self.half)


def test_the_checker_notices_a_rule_that_forgets_too_early() -> None:
    with known(Forgetful, only=("full",)):
        campaign = run_campaign(4_000, seed=5)
    assert campaign.failure is not None


def test_no_schedule_of_a_small_system_with_it_is_stuck_or_leaks() -> None:
    requests = (("abcd", 1, 0), ("abe", 2, 1), ("abg", 1, 0))
    found = explore(Small("full and pair", (("full", 1), ("pair", 2)), 6, requests, rows=2, stored=2))
    assert found.violation == ""
    assert found.is_complete
    assert found.ends > 0
