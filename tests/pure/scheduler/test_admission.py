"""Queued requests and cached prefixes: who is let in first, what waits for whom, and what running requests take."""

from __future__ import annotations

import pytest

from cached_traffic import UNIT, Traffic, joined, plan_of, warm_and_cold_after_an_elder, words
from quire.core.events import RequestAdmitted, RequestEnded, RequestPreempted, StepLaunched
from quire.core.reasons import Why
from quire.core.rules import Policy, Rules
from quire.prefix.keys import keys_of
from quire.scheduler import queue

KINDS = [["full"], ["full", "window"], ["full", "state"]]


def busy(*kinds: str, rows: int = 2, rules: Rules | None = None, **numbers: int) -> Traffic:
    """One prompt is cached, and one request runs on while others come: it is the elder."""
    traffic = Traffic(plan_of(*kinds, rows=rows, **numbers), rules=rules)
    traffic.ask("before", words("warm", 97))
    traffic.submit("elder", words("elder", 9), 200)
    for _ in range(3):
        traffic.step()
    return traffic


def came(traffic: Traffic) -> list[str]:
    """Who was let in, in this order, after the first two."""
    return traffic.order()[2:]


# ── who goes first ────────────────────────────────────────────────────────


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("policy", list(Policy))
def test_of_two_queued_requests_the_one_whose_prefix_is_cached_goes_first(kinds: list[str], policy: Policy) -> None:
    traffic = busy(*kinds, rules=Rules(policy=policy))
    traffic.submit("holds the row", words("holds", 20), 20)
    traffic.step()
    traffic.submit("cold", words("cold", 97))
    traffic.submit("warm", joined(words("warm", 97), words("more", 9)))
    traffic.finish()
    assert came(traffic) == ["holds the row", "warm", "cold"]
    assert traffic.admitted("warm")["hit_tokens"] >= 96


def test_the_longer_of_two_cached_prefixes_goes_first() -> None:
    traffic = busy("full")
    traffic.submit("holds the row", words("holds", 20), 20)
    traffic.step()
    traffic.submit("cold", words("cold", 97))
    traffic.submit("short", joined(words("warm", 40), words("short", 60)))
    traffic.submit("long", joined(words("warm", 80), words("long", 60)))
    traffic.finish()
    assert came(traffic)[1:] == ["long", "short", "cold"]


def test_what_is_cached_while_requests_wait_changes_who_goes_first() -> None:
    """The last in line goes on from what the running one computes, and is looked up again when that is there."""
    traffic = busy("full")
    traffic.submit("computes", words("new", 97), 20)
    traffic.step()
    traffic.submit("cold", words("cold", 97))
    traffic.submit("alike", joined(words("new", 97), words("more", 9)))
    traffic.finish()
    assert came(traffic) == ["computes", "alike", "cold"]
    assert traffic.admitted("alike")["hit_tokens"] == 96


def test_a_higher_priority_goes_before_a_cached_prefix() -> None:
    traffic = busy("full")
    traffic.submit("holds the row", words("holds", 20), 20, priority=9)
    traffic.step()
    traffic.submit("warm", words("warm", 97))
    traffic.submit("cold", words("cold", 97))
    traffic.submit("urgent", words("urgent", 97), priority=1)
    traffic.finish()
    assert came(traffic)[1:] == ["urgent", "warm", "cold"]


@pytest.mark.parametrize("urgency", [0, 9])
def test_a_tenant_whose_requests_are_all_urgent_goes_no_earlier(urgency: int) -> None:
    """Under fair shares a priority orders the requests of one tenant; other tenants' turns stay what they were."""
    traffic = busy("full", rules=Rules(policy=Policy.FAIR))
    traffic.submit("holds the row", words("holds", 20), 20, tenant="ann")
    traffic.step()
    for number in range(3):
        traffic.submit(f"ann{number}", words(f"ann{number}", 50), tenant="ann", priority=urgency)
        traffic.submit(f"bob{number}", words(f"bob{number}", 50), tenant="bob", priority=number)
    traffic.finish()
    assert came(traffic)[1:] == ["bob2", "ann0", "bob1", "ann1", "bob0", "ann2"]


def test_cached_prefixes_go_first_for_so_many_admissions_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """New requests with a cached prefix come for ever: the one without is let in after PATIENCE of them."""
    monkeypatch.setattr(queue, "PATIENCE", 7)
    traffic = busy("full")
    traffic.submit("holds the row", words("holds", 20), 3)
    traffic.step()
    traffic.submit("cold", words("cold", 97))
    for number in range(20):
        traffic.submit(f"warm{number}", joined(words("warm", 97), words(f"{number}", 9)))
    traffic.finish()
    assert came(traffic).index("cold") == 1 + 7
    assert came(traffic)[9:] == [f"warm{number}" for number in range(7, 20)]


def test_the_elder_is_let_in_whatever_others_have_in_the_cache() -> None:
    traffic = Traffic(plan_of("full", rows=1))
    traffic.ask("before", words("warm", 97))
    traffic.submit("cold", words("cold", 97))
    traffic.submit("warm", words("warm", 97))
    traffic.finish()
    assert traffic.order() == ["before", "cold", "warm"]


def test_while_a_request_with_a_cached_prefix_waits_for_room_those_with_less_wait_too() -> None:
    """The pool holds the elder and one of the others: the small one would fit, and waits for the large one."""
    traffic = warm_and_cold_after_an_elder()
    for _ in range(3):
        traffic.step()
    assert traffic.waiting("warm").reason.code is Why.MEMORY
    assert traffic.waiting("cold").reason.code is Why.CACHED_FIRST
    traffic.finish()
    assert traffic.order()[2:] == ["warm", "cold"]


def test_without_a_cached_prefix_a_large_request_lets_smaller_ones_pass() -> None:
    traffic = Traffic(plan_of("full", rows=4, sheets=40, max_length=300))
    traffic.scheduler.admission.typical_output = 1.0
    traffic.submit("elder", words("elder", 150), 30)
    for _ in range(5):
        traffic.step()
    traffic.submit("large", words("large", 217))
    traffic.submit("small", words("small", 20))
    traffic.finish()
    assert traffic.order() == ["elder", "small", "large"]


# ── pages that several hold ───────────────────────────────────────────────


def test_pages_that_are_shared_with_running_requests_count_once() -> None:
    """20 pages of prompt for three requests, in a pool of 30: all run together. One that shares none waits."""
    traffic = Traffic(plan_of("full", rows=6, sheets=30, max_length=220))
    traffic.scheduler.admission.typical_output = 8.0
    prompt = words("shared", 161)
    traffic.submit("first", prompt, 40)
    for _ in range(6):
        traffic.step()
    for name in ("second", "third"):
        traffic.submit(name, prompt, 8)
    traffic.submit("other", words("other", 161), 8)
    for _ in range(4):
        traffic.step()
    assert set(traffic.scheduler.rows.row_of) >= {"first", "third"}
    assert "other" not in traffic.scheduler.rows.row_of
    traffic.finish()
    events = [(type(event), getattr(event, "request", "")) for event in traffic.events]
    assert events.index((RequestAdmitted, "third")) < events.index((RequestEnded, "first"))
    assert not [event for event in traffic.events if isinstance(event, RequestPreempted)]


@pytest.mark.parametrize(("sheets", "together"), [(20, True), (12, False)])
def test_beside_states_shared_pages_count_once_while_half_of_the_pool_is_left(sheets: int, together: bool) -> None:
    """Five times 20 pages of prompt, five to a sheet, are more than either pool has. What the requests take in fact is
    less than half of the larger one, and more than half of the smaller one."""
    traffic = Traffic(plan_of("full", "state", rows=6, sheets=sheets, max_length=220))
    traffic.scheduler.admission.typical_output = 8.0
    traffic.submit("first", words("shared", 161), 40)
    for _ in range(6):
        traffic.step()
    for number in range(4):
        traffic.submit(f"r{number}", words("shared", 161), 8)
    traffic.finish()
    events = [(type(event), getattr(event, "request", "")) for event in traffic.events]
    assert (events.index((RequestAdmitted, "r3")) < events.index((RequestEnded, "r0"))) == together


def test_without_shared_pages_as_many_requests_do_not_run_together() -> None:
    traffic = Traffic(plan_of("full", rows=6, sheets=30, max_length=220))
    traffic.scheduler.admission.typical_output = 8.0
    for name in ("first", "second"):
        traffic.submit(name, words(name, 161), 8)
    traffic.finish()
    events = [(type(event), getattr(event, "request", "")) for event in traffic.events]
    assert events.index((RequestAdmitted, "second")) > events.index((RequestEnded, "first"))


# ── what running requests take ────────────────────────────────────────────


def prefilling(is_awaited: bool) -> Traffic:
    """A pool of 30 pages: 10 are cached, and a running prompt has taken 18 of the others. A request that would go on
    from those 10 is queued, or none is."""
    traffic = Traffic(plan_of("full", rows=1, sheets=30, max_length=240), overlap=1)
    traffic.ask("before", words("warm", 81))
    traffic.submit("large", words("large", 230))
    traffic.step()
    if is_awaited:
        traffic.submit("queued", words("warm", 81))
    for _ in range(2):
        traffic.step()
    assert traffic.scheduler.rows.computed[0] == 3 * 48
    return traffic


def sizes(traffic: Traffic) -> list[int]:
    """Tokens of each step."""
    return [event.tokens for event in traffic.events if isinstance(event, StepLaunched)]


def cached_units(traffic: Traffic, name: str, count: int) -> int:
    return traffic.index.nodes.depth(keys_of(traffic.scheduler.reuse.root_of(""), words(name, count), UNIT))


def test_a_chunk_shrinks_before_what_a_queued_request_awaits_is_evicted() -> None:
    """Two pages are free, which is more than a quarter of a step: what is awaited stays for the rest of it."""
    traffic = prefilling(is_awaited=True)
    traffic.step()
    assert sizes(traffic)[-1] == 2 * UNIT
    assert cached_units(traffic, "warm", 81) == 10


@pytest.mark.story
def test_what_the_only_queued_request_awaits_stays_from_the_moment_it_comes() -> None:
    """It comes just before a step that lacks pages. The step evicted what it awaited, for that was looked up only when
    the request had been passed over once."""
    traffic = Traffic(plan_of("full", rows=1, sheets=30, max_length=240), overlap=1)
    traffic.ask("before", words("warm", 81))
    traffic.submit("large", words("large", 230))
    for _ in range(3):
        traffic.step()
    traffic.submit("queued", words("warm", 81))
    assert traffic.waiting("queued").cached == 80
    traffic.step()
    assert sizes(traffic)[-1] == 2 * UNIT
    assert cached_units(traffic, "warm", 81) == 10


def test_a_chunk_does_not_shrink_for_prefixes_that_nothing_awaits() -> None:
    traffic = prefilling(is_awaited=False)
    traffic.step()
    assert sizes(traffic)[-1] == 48
    assert cached_units(traffic, "warm", 81) < 10


def test_a_running_request_goes_on_at_the_expense_of_what_is_awaited() -> None:
    """It needs pages, less than a quarter of a step is free, and nothing else gives way: it never stands still."""
    traffic = prefilling(is_awaited=True)
    while "large" in traffic.engine.streams:
        steps = len(sizes(traffic))
        traffic.step()
        assert len(sizes(traffic)) == steps + 1
    traffic.finish()
    numbers = traffic.admitted("queued")
    assert numbers["missed_evicted_waiting"] > 0
    assert numbers["missed_evicted_waiting"] + numbers["hit_tokens"] == 80


@pytest.mark.parametrize("overlap", [1, 2, 3])
def test_decoding_never_stands_still_for_what_is_awaited(overlap: int) -> None:
    """The pool is full of prefixes that queued requests would go on from: each step yields a token all the same."""
    traffic = Traffic(plan_of("full", rows=1, sheets=30, max_length=240), overlap=overlap)
    for name in "ab":
        traffic.ask(name, words(name, 81))
    stream = traffic.submit("elder", words("elder", 9), 200)
    traffic.step()
    for name in "ab":
        traffic.submit(f"{name} again", words(name, 81))
    before = traffic.scheduler.steps - 1
    while stream.ending is None:
        traffic.step()
    assert traffic.scheduler.steps - before <= 200 + overlap
    assert len(stream.tokens()) == 200
    traffic.finish()
    assert any("missed_evicted_waiting" in traffic.admitted(f"{name} again") for name in "ab"), "it had to take some"


@pytest.mark.parametrize("is_awaited", [False, True])
def test_admission_leaves_room_for_prefixes_that_others_in_the_queue_would_use(is_awaited: bool) -> None:
    """36 of 40 pages would be taken: that fits, but not in addition to 10 cached ones that the next in line awaits."""
    traffic = Traffic(plan_of("full", rows=3, sheets=40, max_length=300))
    traffic.ask("before", words("warm", 81))
    traffic.scheduler.admission.typical_output = 1.0
    traffic.submit("elder", words("elder", 81), 60)
    traffic.submit("holds", words("holds", 9), 60)
    for _ in range(4):
        traffic.step()
    traffic.submit("large", words("large", 170), priority=1)
    if is_awaited:
        traffic.submit("warm", words("warm", 81))
    traffic.step()
    assert ("large" in traffic.scheduler.rows.row_of) == (not is_awaited)
    assert ("warm" in traffic.scheduler.rows.row_of) == is_awaited
    traffic.finish()


# ── states captured on the way ────────────────────────────────────────────


@pytest.mark.parametrize("kinds", [["full", "state"], ["state"], ["full", "window", "state"]])
@pytest.mark.parametrize(
    ("size", "parts", "hit"), [(2_000, 1_300, 1_024), (2_000, 600, 512), (130_000, 110_100, 110_080)]
)
def test_a_prompt_that_parts_in_the_middle_of_another_goes_on_from_the_nearest_captured_state(
    kinds: list[str], size: int, parts: int, hit: int
) -> None:
    """States are captured every 512 tokens, whatever the chunks; where the two parted, one is kept for the third."""
    traffic = Traffic(plan_of(*kinds, sheets=60_000, batch_tokens=3_000, max_length=131_000), overlap=2)
    traffic.ask("first", words("a", size))
    second = traffic.ask("second", joined(words("a", parts), words("b", 300)))
    assert second["hit_tokens"] == hit
    assert second["missed_never_kept"] == (parts - hit) // UNIT * UNIT
    third = traffic.ask("third", joined(words("a", parts), words("c", 300)))
    assert third["hit_tokens"] == parts // UNIT * UNIT
    assert traffic.missed("third") == {}
    chunks = [3_000] * (size // 3_000) + [size % 3_000]
    assert sizes(traffic)[: len(chunks)] == chunks, "no chunk is split"


@pytest.mark.parametrize("priority", [-1, 1])
def test_of_running_requests_the_elder_comes_first_whatever_its_priority(priority: int) -> None:
    traffic = Traffic(plan_of("full", rows=2), rules=Rules(policy=Policy.PRIORITY))
    traffic.submit("elder", words("elder", 20), 30, priority=priority)
    traffic.submit("other", words("other", 20), 30, priority=0)
    traffic.step()
    requests = traffic.scheduler.rows.requests
    assert [requests[row].name for row in traffic.scheduler.running.order().tolist()] == ["elder", "other"]


@pytest.mark.parametrize("kinds", KINDS)
def test_each_turn_of_a_session_counts_the_hits_that_led_to_it(kinds: list[str]) -> None:
    traffic = Traffic(plan_of(*kinds))
    for turn in range(4):
        traffic.ask(f"turn {turn}", words("session", 100 + 40 * turn))
        nodes = traffic.index.nodes
        assert nodes.line[nodes.tokens.argmax()] == turn
