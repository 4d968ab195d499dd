"""Slow tier: loads reserve to the end of their request, so nobody is parked where it cannot go on."""

from __future__ import annotations

import pytest
from scenes import PAGE, World, ask, own_tokens, paged_plan

from quire.core.events import Event, LoadFinished, LoadStarted, RequestAdmitted, RequestEnded, RequestPreempted
from quire.core.request import Ending, Request
from quire.core.units import ceil_div


def pages_at_loads(world: World) -> list[int]:
    """A list that gets, whenever a load begins, the pages that all who run then may come to need."""
    pages: list[int] = []

    def watch(event: Event) -> None:
        if isinstance(event, LoadStarted):
            pages.append(sum(ceil_div(one.limit, PAGE) for one in world.engine.scheduler.rows.requests.values()))

    world.engine.scheduler.events.subscribe(watch)
    return pages


def test_a_load_does_not_begin_before_its_request_can_stay_to_its_end() -> None:
    """2,048 pages of 16 tokens. A is 25,596 tokens long and 8,192 of them lie on the tier; B is 19,196 long and 11,776
    of them do. Together they exceed the pool at their ends, not at their beginnings: both finish, B after A."""
    world = World(paged_plan(2048))
    pages = pages_at_loads(world)
    first = world.submit(ask("A", 25_500, 96), on_tier_tokens=8192)
    second = world.submit(ask("B", 19_100, 96), on_tier_tokens=11_776)
    world.run(1000)
    assert first.ending is second.ending is Ending.LENGTH
    assert world.told(LoadFinished) == ["A", "B"]
    assert max(pages) <= 2048
    assert world.place_of(RequestEnded, "A") < world.place_of(LoadStarted, "B")
    assert not world.told(RequestPreempted)


def test_a_load_does_not_begin_on_the_hope_that_outputs_will_be_short() -> None:
    """The same lengths, but most of them outputs that are likely to stay short, and A computes all of its own. B is let
    in beside A: it may compute there and be preempted, but what is loaded must be able to stay to the longest end."""
    world = World(paged_plan(2048))
    pages = pages_at_loads(world)
    world.engine.scheduler.admission.typical_output = 1.0
    first = world.submit(Request("A", own_tokens("A", 16_000), 25_596 - 16_000, stop_tokens=(16_040,)))
    second = world.submit(Request("B", own_tokens("B", 12_000), 19_196 - 12_000, stop_tokens=(12_040,)), 11_776)
    world.run(1000)
    assert first.ending is second.ending is Ending.STOP
    assert world.place_of(RequestAdmitted, "B") < world.place_of(RequestEnded, "A")
    assert max(pages, default=0) <= 2048


def test_a_head_that_cannot_load_yet_holds_up_neither_the_running_nor_the_small() -> None:
    """270 pages. L holds 250 and needs 5 more; H, at the head of the queue, needs 100 and W 10; 20 are free. L and W
    finish, then H is loaded and finishes."""
    world = World(paged_plan(270, batch_tokens=4096))
    large = world.submit(ask("L", 4000, 80))
    world.step()
    (table,) = world.engine.scheduler.memories[0].tables
    assert len(table.held(world.engine.scheduler.rows.row_of["L"])) == 250
    assert world.engine.scheduler.memories[0].pool.free_sheets == 20
    head = world.submit(ask("H", 1500, 100, priority=9), on_tier_tokens=1024)
    small = world.submit(ask("W", 150, 10))
    world.run(1000)
    assert large.ending is head.ending is small.ending is Ending.LENGTH
    for name in ("L", "W"):
        assert world.place_of(RequestEnded, name) < world.place_of(LoadStarted, "H")
    assert world.told(LoadFinished) == ["H"]
    assert not world.told(RequestPreempted)


def test_one_is_parked_at_a_time_where_two_could_not_both_go_on() -> None:
    """7 pages. A loads 4 and needs 1 more for what it computes and its lookahead, B 3 and 1: both loads would fit, and
    then neither could go on. Never are two under way, and both finish."""
    world = World(paged_plan(7, lookahead=3), load_seconds=2.0)
    first = world.submit(ask("A", 66, 14), on_tier_tokens=4 * PAGE)
    second = world.submit(ask("B", 50, 14), on_tier_tokens=3 * PAGE)
    most = 0
    while world.step():
        most = max(most, len(world.loading()))
    assert most == 1
    assert world.told(LoadFinished) == ["A", "B"]
    assert first.ending is second.ending is Ending.LENGTH


@pytest.mark.parametrize("steps_after_loading", [0, 19, 20, 21, 25])
@pytest.mark.parametrize("is_expected_short", [True, False])
def test_a_late_urgent_head_does_not_strand_a_finished_load(steps_after_loading: int, is_expected_short: bool) -> None:
    """X has loaded, or is about to, when H comes with a higher priority and wants what is left and more. X keeps what
    was brought, is not preempted, and finishes; so does H, also where H was thought to be short and let in."""
    world = World(paged_plan(34), load_seconds=2.0)
    scheduler = world.engine.scheduler
    scheduler.admission.typical_output = 1.0 if is_expected_short else 128.0
    elder = world.submit(ask("E", 30, 170))
    world.step()
    loaded = world.submit(ask("X", 170, 100), on_tier_tokens=160)
    world.step()
    assert world.loading() == ["X"]
    for _ in range(steps_after_loading):
        world.step()
    head = world.submit(ask("H", 60, 180, priority=9))
    world.run(1000)
    assert elder.ending is loaded.ending is head.ending is Ending.LENGTH
    assert world.told(LoadFinished) == ["X"]
    assert "X" not in world.told(RequestPreempted)
