"""What metrics show of an engine, and what a scope leaves behind when it is dropped."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from disturbed import Disturbed
from scenes import FreeRunner, own_tokens

from cached_traffic import warm_and_cold_after_an_elder
from quire.cache.audit import audit
from quire.core.reasons import Why
from quire.core.request import Request
from quire.engine.engine import Engine
from quire.explain.status import status_of
from quire.models.shape import ModelShape
from quire.plan.make import make_plan
from quire.plan.settings import Budget, Settings
from small_engines import engine_for, request, small_plan
from small_kinds import KINDS


def engine_of(kinds: tuple[str, ...], sheets: int = 64) -> Engine:
    shape = ModelShape("small", "test", tuple(KINDS[kind] for kind in kinds), max_length=4096, weights_known=False)
    plan = make_plan(shape, Settings(max_requests=4, batch_tokens=64, match_unit_tokens=16), Budget(sheets=(sheets,)))
    return Engine(plan, FreeRunner())


def run(engine: Engine, name: str, tokens: np.ndarray, scope: str) -> None:
    engine.submit(Request(name, tokens, 3, scope=scope))
    engine.drain()


def books_balance(engine: Engine) -> bool:
    for memory in engine.scheduler.memories:
        audit(memory, {row: request.name for row, request in engine.scheduler.rows.requests.items()})
    return True


@pytest.mark.parametrize("kinds", [("full",), ("full", "window"), ("full", "state")])
def test_dropping_a_scope_forgets_its_prefixes_and_no_others(kinds: tuple[str, ...]) -> None:
    engine = engine_of(kinds)
    shared = own_tokens("shared", 100)
    for scope in ("one", "two"):
        for end in ("x", "y"):
            run(engine, f"{scope}-{end}", np.append(shared, own_tokens(end, 70)), scope)
    run(engine, "one-short", own_tokens("short", 9), "one")
    assert engine.drop_cache("one") > 0
    assert books_balance(engine)
    assert engine.drop_cache("one") == 0
    run(engine, "again-two", np.append(shared, own_tokens("x", 70)), "two")
    run(engine, "again-one", np.append(shared, own_tokens("x", 70)), "one")
    hits = {name: engine.history.of(name)[1].hit_tokens for name in ("again-one", "again-two")}
    assert hits["again-one"] == 0 < hits["again-two"]
    engine.drop_cache("one"), engine.drop_cache("two")
    assert all(memory.pool.free_sheets == memory.stage.sheets for memory in engine.scheduler.memories)


def test_dropping_everything_while_requests_run_leaves_balanced_books() -> None:
    engine = engine_of(("full", "window"))
    run(engine, "before", own_tokens("a", 90), "one")
    engine.submit(Request("during", own_tokens("a", 90), 40, scope="one"))
    for _ in range(5):
        engine.step()
    engine.drop_cache("one")
    assert books_balance(engine)
    engine.drain()
    assert books_balance(engine)
    engine.drop_cache()
    assert all(memory.pool.free_sheets == memory.stage.sheets for memory in engine.scheduler.memories)


def test_what_a_request_hands_over_after_its_scope_was_dropped_can_be_dropped_too() -> None:
    engine = engine_of(("full", "window"))
    engine.submit(Request("during", own_tokens("a", 90), 40, scope="one"))
    for _ in range(2):
        engine.step()
    engine.drop_cache("one")
    engine.drop_cache()
    engine.drain()
    assert engine.drop_cache("one") > 0
    assert all(memory.pool.free_sheets == memory.stage.sheets for memory in engine.scheduler.memories)


def test_the_pages_of_a_status_add_up_to_the_sheets() -> None:
    engine = engine_of(("full", "window"))
    run(engine, "before", own_tokens("a", 90), "")
    for name in "bcdefg":
        engine.submit(Request(name, own_tokens(name, 60), 40))
    for _ in range(4):
        engine.step()
    status = status_of(engine)
    assert status.running == 4
    assert sum(status.waiting.values()) == 2
    pool = engine.scheduler.memories[0].pool
    assert status.free_sheets[0] + sum(kind.sheets for kind in status.kinds) == engine.scheduler.plan.stages[0].sheets
    for kind, shelf in zip(status.kinds, pool.shelves, strict=True):
        held = kind.used_pages + kind.cached_pages + kind.pinned_pages + kind.backend_pages + kind.free_pages
        assert held == kind.sheets * shelf.pages_per_sheet
    assert status.sums["admitted", "hit_tokens"] == 0
    assert sum(count for (what, _), count in status.events.items() if what == "admitted") == 5


def test_those_that_wait_are_counted_by_the_code_of_their_reason() -> None:
    engine = engine_of(("full",), sheets=8)
    for name in ("a", "b", "c"):
        engine.submit(Request(name, own_tokens("same", 60), 60))
    seen: Counter[str] = Counter()
    for _ in range(300):
        if not engine.step():
            break
        waiting = status_of(engine).waiting
        assert waiting == Counter(one.reason.code.value for one in engine.scheduler.queue)
        seen.update(waiting.keys())
    assert {"memory", "prefix"} <= seen.keys()


def test_every_reason_to_wait_in_the_queue_is_produced_and_counted() -> None:
    """By an engine whose loads fail and whose rows are few, and by one that admits more than its pool can hold. A code
    that neither produces any more, or that is counted under another one, is missing here."""
    codes = list(Why)
    waits = set(codes[: codes.index(Why.LOADING)]) - {Why.IN_LINE, Why.ANOTHER_ENGINE}  # explanations alone use these
    waits -= {Why.LEASED}  # neither engine has leases: see test_leased_prefixes.py
    seen: set[str] = set()
    disturbed = Disturbed(["state", "full", "chunked"], seed=8)
    for _ in range(250):
        while len(disturbed.engine.streams) < 10:
            disturbed.submit()
        disturbed.step()
        seen |= status_of(disturbed.engine).waiting.keys()
    crowded, _ = engine_for(small_plan(["window", "chunked", "full"], None, budget=3))
    for number in range(8):
        crowded.submit(request(f"r{number}", 30 + 7 * number, 40, priority=number % 3))
    for _ in range(400):
        crowded.scheduler.admission.typical_output = 1.0
        crowded.step()
        seen |= status_of(crowded).waiting.keys()
    assert seen == {code.value for code in waits}


@pytest.mark.story
def test_waiting_for_requests_with_more_in_the_cache_has_a_word() -> None:
    """It was `other`."""
    traffic = warm_and_cold_after_an_elder()
    traffic.step()
    assert status_of(traffic.engine).waiting == {"memory": 1, "cached_first": 1}
