"""Pages that only the cache holds are not missing: a request that needs them gets them, unless a lease keeps them."""

from __future__ import annotations

from quire.explain.explanation import KindShort
from quire.explain.request import explain
from quire.explain.sentences import describe
from quire.prefix.leases import LeaseTerms
from small_engines import engine_for, request, run, small_plan


def test_cached_pages_are_evictable_except_those_of_leases() -> None:
    engine, _ = engine_for(small_plan(["full"], 60))
    for name in ("a", "b"):
        engine.submit(request(name, 150, 4))
    run(engine, 500)
    answer = engine.lease(LeaseTerms("kept", "alice", 60.0), "", request("a", 150, 4).prompt)
    assert answer.refusal is None
    for number in range(6):
        engine.submit(request(f"n{number}", 150, 60))
    for _ in range(3):
        engine.step()
    found = explain(engine, "n5")
    assert found is not None
    (full,) = found.kinds
    page_bytes = engine.scheduler.plan.stages[0].kinds[0].page_bytes
    cached = dict(full.others)["cache"]
    assert full.evictable_pages == cached - answer.size_bytes // page_bytes
    assert cached > full.evictable_pages > 0
    assert f"{full.free_pages:,} are free, {full.evictable_pages:,} evictable" in describe(found)


def test_missing_pages_are_those_that_eviction_does_not_free() -> None:
    assert KindShort(0, "full", 27, 1, 20, (), (("cache", 20),), 18).short_pages == 27 + 20 - 1 - 18
    assert KindShort(0, "full", 27, 30, 0, (), (("cache", 20),), 18).short_pages == 0
