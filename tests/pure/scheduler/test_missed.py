"""What a request did not find though it was computed before: reported once, by cause, and never too much."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from cached_traffic import UNIT, Traffic, joined, plan_of, words
from doubles import silent_tier
from quire.cache.pool import Holder
from quire.check.promises import check_books
from quire.core.events import RequestAdmitted
from quire.core.sampling import Sampling
from quire.core.tier import TransferFailed
from unlikely import drop_unlikely


def test_a_prompt_that_was_never_computed_misses_nothing() -> None:
    traffic = Traffic(plan_of("full"))
    traffic.ask("a", words("a", 100))
    traffic.ask("b", words("b", 100))
    assert traffic.missed("a") == traffic.missed("b") == {}


def test_a_prompt_that_finds_all_of_it_misses_nothing() -> None:
    traffic = Traffic(plan_of("full", "window", "state"))
    traffic.ask("a", words("a", 100))
    assert traffic.ask("again", words("a", 100))["hit_tokens"] == 96
    assert traffic.missed("again") == {}


@pytest.mark.parametrize("kinds", [["full"], ["full", "window"], ["full", "state"], ["window"], ["state"]])
def test_what_was_evicted_before_the_request_came_is_reported_as_evicted(kinds: list[str]) -> None:
    traffic = Traffic(plan_of(*kinds))
    traffic.ask("a", words("a", 100))
    traffic.evict_all()
    assert traffic.ask("again", words("a", 100))["hit_tokens"] == 0
    assert traffic.missed("again") == {"evicted": 96}


def test_of_what_was_dropped_nothing_is_remembered() -> None:
    """Not even that it was there: of another scope all is."""
    traffic = Traffic(plan_of("full"))
    for scope in ("", "secret"):
        traffic.ask(f"first {scope}", words("a", 100), scope=scope)
    traffic.evict_all()
    traffic.engine.drop_cache("secret")
    for scope in ("", "secret"):
        traffic.ask(f"again {scope}", words("a", 100), scope=scope)
    assert traffic.missed("again secret") == {}
    assert traffic.missed("again ") == {"evicted": 96}


@pytest.mark.parametrize("kinds", [["full"], ["full", "window"], ["full", "state"]])
def test_what_was_evicted_after_the_request_had_come_is_reported_apart(kinds: list[str]) -> None:
    traffic = Traffic(plan_of(*kinds, rows=1))
    traffic.ask("a", words("a", 100))
    traffic.submit("runs", words("runs", 20), 30)
    traffic.step()
    traffic.submit("again", words("a", 100))
    traffic.step()
    traffic.evict_all()
    traffic.finish()
    assert traffic.missed("again") == {"evicted_waiting": 96}


def test_what_was_evicted_before_and_after_the_request_had_come_is_told_apart_unit_by_unit() -> None:
    traffic = Traffic(plan_of("full", rows=1))
    traffic.ask("a", words("a", 100))
    unit_bytes = traffic.index.coverage.bundle_bytes(UNIT)
    traffic.submit("runs", words("runs", 20), 30)
    traffic.step()
    assert traffic.index.evict(4.5 * unit_bytes, must=False).tokens == 5 * UNIT
    traffic.submit("again", words("a", 100))
    traffic.step()
    assert traffic.index.evict(2.5 * unit_bytes, must=True, even_awaited=True).tokens == 3 * UNIT
    traffic.finish()
    assert traffic.admitted("again")["hit_tokens"] == 4 * UNIT
    assert traffic.missed("again") == {"evicted": 5 * UNIT, "evicted_waiting": 3 * UNIT}


def test_cached_tokens_without_a_state_where_prompts_part_are_reported_as_never_kept() -> None:
    traffic = Traffic(plan_of("full", "state"))
    traffic.ask("a", words("a", 100))
    assert traffic.ask("b", joined(words("a", 50), words("b", 50)))["hit_tokens"] == 0
    assert traffic.missed("b") == {"never_kept": 48}


@pytest.mark.story
@pytest.mark.parametrize("kinds", [["full", "state"], ["full", "window"], ["window", "state"]])
@pytest.mark.parametrize("shared", [24, 48, 72, 96])
def test_the_third_prompt_finds_where_the_first_two_parted(kinds: list[str], shared: int) -> None:
    """In the middle of a chunk of 48 tokens or at its end. Where the first prompt's chunk had ended, the second one was
    taken to go on from an end, no boundary was kept for the third, and each one after it computed all of it."""
    traffic = Traffic(plan_of(*kinds))
    traffic.ask("a", words("a", 150))
    drop_unlikely(traffic.index)
    for name in "bc":
        traffic.ask(name, joined(words("a", shared), words(name, 150 - shared)))
    assert traffic.admitted("c")["hit_tokens"] == shared


@pytest.mark.parametrize("kinds", [["full", "window"], ["full", "state"]])
@pytest.mark.parametrize("is_waiting", [False, True])
def test_cached_tokens_whose_boundary_was_evicted_are_reported_as_such(kinds: list[str], is_waiting: bool) -> None:
    """Of a long session only the last end is left, and its first prompt comes again: full attention has all of it."""
    traffic = Traffic(plan_of(*kinds, rows=1))
    first = traffic.submit("a", words("a", 97), 8)
    traffic.finish()
    traffic.ask("b", joined(first.request.prompt, first.tokens(), words("b", 100)))
    traffic.submit("runs", words("runs", 20), 30)
    traffic.step()
    if is_waiting:
        traffic.submit("again", first.request.prompt)
        traffic.step()
    evict_boundaries_on_the_way(traffic)
    if not is_waiting:
        traffic.submit("again", first.request.prompt)
    assert traffic.index.nodes.depth(traffic.waiting("again").keys) == 12
    traffic.finish()
    assert traffic.admitted("again")["hit_tokens"] == 0
    assert traffic.missed("again") == {"evicted_waiting" if is_waiting else "tail_evicted": 96}


def evict_boundaries_on_the_way(traffic: Traffic) -> None:
    """Chains stay, and what their last ends need."""
    index = traffic.index
    for number in list(index.boundaries.groups):
        index._drop_group(number)
    for node in list(index.boundaries.tails):
        if index.nodes.children[node]:
            index._drop_boundary(node)
    check_books(traffic.scheduler)


def test_a_hit_without_room_for_its_copies_is_reported() -> None:
    """A tier reads the cached state, and no page is free to copy it to: the request computes what it found."""
    traffic = Traffic(plan_of("full", "state", rows=2, sheets=40))
    traffic.ask("a", words("a", 100))
    index, (memory,) = traffic.index, traffic.scheduler.memories
    (states,) = index.coverage.states
    traffic.submit("again", words("a", 100))
    keys = traffic.waiting("again").keys
    (node,) = index.nodes.follow(keys, 12)[-1:].tolist()
    held = {kind: memory.kept[kind].pages[node, 0] for kind in states}
    for kind, pages in held.items():
        memory.pool.hold(kind, pages, Holder.PIN)
    (full,) = [kind for kind, table in enumerate(memory.tables) if table.kind.grows]
    per_sheet = memory.pool.shelves[full].pages_per_sheet
    filler = memory.pool.take(full, memory.pool.free_sheets * per_sheet, Holder.BACKEND)
    for kind in states:
        shelf = memory.pool.shelves[kind]
        held[kind] = np.append(held[kind], memory.pool.take(kind, shelf.free_pages, Holder.PIN))
    traffic.scheduler.schedule()
    assert traffic.missed("again") == {"no_room": 96}
    assert len(filler)


@pytest.mark.story
def test_a_request_that_may_not_reuse_misses_nothing() -> None:
    """It computes its whole prompt for the log-probabilities, cached or not. Once that was evicted, it was reported as
    missed, and learned from as a use."""
    traffic = Traffic(plan_of("full"))
    traffic.ask("a", words("a", 100))
    traffic.ask("cached", words("a", 100), sampling=Sampling(prompt_logprobs=1))
    assert traffic.missed("cached") == {}
    traffic.evict_all()
    traffic.ask("evicted", words("a", 100), sampling=Sampling(prompt_logprobs=1))
    assert traffic.missed("evicted") == {}
    assert len(traffic.index.eviction.ghosts.live()) == 1, "what was evicted is still watched"


def test_a_prompt_of_more_than_a_hundred_thousand_tokens_is_counted_to_the_last_unit() -> None:
    plan = plan_of("full", "window", sheets=60_000, batch_tokens=50_000, max_length=200_000)
    traffic = Traffic(plan)
    prompt = words("a", 130_003)
    traffic.ask("a", prompt)
    assert traffic.ask("again", prompt)["hit_tokens"] == 130_000
    traffic.evict_all()
    traffic.ask("evicted", joined(prompt[:120_001], words("b", 500)))
    assert traffic.missed("evicted") == {"evicted": 120_000}


def test_a_preempted_request_does_not_report_again() -> None:
    """All of them were computed before and evicted; the pool is too small for them, so some are let in twice."""
    traffic = Traffic(plan_of("full", sheets=26, rows=4, max_length=200))
    for name in "abc":
        traffic.ask(name, words(name, 60))
    traffic.evict_all()
    traffic.scheduler.admission.typical_output = 1.0
    for name in "abc":
        traffic.submit(f"{name} again", words(name, 60), 60)
    traffic.finish()
    admitted = [
        event for event in traffic.events if isinstance(event, RequestAdmitted) and event.request.endswith("again")
    ]
    again = [event for event in admitted if event.preemptions]
    assert again, "the test is about them"
    first = [event for event in admitted if not event.preemptions]
    assert sum("missed_evicted" in event.numbers for event in first) == 3
    assert not any(name.startswith("missed") for event in again for name in event.numbers)
    sums = traffic.engine.counters.sums
    assert sums[RequestAdmitted, "missed_evicted"] == sum(event.missed_evicted for event in first)


@pytest.mark.story
def test_what_was_missed_is_reported_once_though_a_load_fails() -> None:
    """The request is let in, a tier does not bring what it offered, and it is let in again: the second time counted
    as well."""
    tier = silent_tier(0)
    traffic = Traffic(plan_of("full"), tier=tier)
    traffic.ask("a", words("a", 100))
    traffic.evict_all()
    tier.units = 5
    traffic.submit("again", words("a", 100))
    traffic.step()
    tier.answer(TransferFailed(max(tier.transfers), ""))
    traffic.finish()
    assert traffic.order().count("again") == 2
    assert traffic.engine.counters.sums[RequestAdmitted, "missed_evicted"] == 96


@pytest.mark.law
@pytest.mark.parametrize("kinds", [["full"], ["full", "window"], ["full", "state"], ["sink", "chunked"]])
@pytest.mark.parametrize("at_once", [1, 4])
def test_hits_and_misses_are_never_more_than_was_computed_before(kinds: list[str], at_once: int) -> None:
    """Sessions that go on and branch off, in a pool that holds a few of them; answers may end between units."""
    random = Random(str(kinds))
    traffic = Traffic(plan_of(*kinds, sheets=50, max_length=300))
    before: list[np.ndarray] = []
    causes: set[str] = set()
    for number in range(0, 40, at_once):
        asked = {}
        for name in (f"r{number + one}" for one in range(at_once)):
            old = random.choice(before) if before and random.random() < 0.8 else words(name, 0)
            prompt = joined(old[: random.choice((len(old), random.randint(0, len(old))))], words(name, 40))[:200]
            asked[name] = traffic.submit(name, prompt, random.randint(1, 30))
        traffic.finish()
        earlier = list(before)
        before += [joined(one.request.prompt, one.tokens()) for one in asked.values()]
        for name, stream in asked.items():
            first = next(e for e in traffic.events if isinstance(e, RequestAdmitted) and e.request == name)
            gap = {cause: count for cause, count in first.numbers.items() if cause.startswith("missed_")}
            causes |= gap.keys()
            others = earlier + [one for other, one in zip(asked, before[len(earlier) :], strict=True) if other != name]
            computed = max((shared(stream.request.prompt, one) for one in others), default=0)
            assert first.hit_tokens + sum(gap.values()) <= min(computed, len(stream.request.prompt) - 1)
    assert causes, "some of it was missed"


def shared(some: np.ndarray, others: np.ndarray) -> int:
    size = min(len(some), len(others))
    different = (some[:size] != others[:size]).nonzero()[0]
    return int(different[0]) if len(different) else size
