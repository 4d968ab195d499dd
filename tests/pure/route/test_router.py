"""The router: least work first, sessions spread at their first request and at home afterwards."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quire.explain.room import Room
from quire.route.policies import POLICIES
from quire.route.policy import Arrival, Policy
from quire.route.router import Router, Weights

IDLE = Room(True, False, 1000)


def arrival(session: str, *rooms: Room, seconds: float = 0.0) -> Arrival:
    return Arrival(session, seconds, len(rooms), lambda: rooms)


def placed(policy: Policy, session: str, *rooms: Room, seconds: float = 0.0) -> int:
    return policy.choose(arrival(session, *rooms, seconds=seconds))


def test_a_prompt_goes_where_most_of_it_is_reused() -> None:
    assert placed(Router(), "s", IDLE, replace(IDLE, pool_tokens=900), IDLE) == 1


def test_work_that_is_ahead_outweighs_less_that_is_reused() -> None:
    busy = replace(IDLE, pool_tokens=900, tokens_ahead=5000)
    assert placed(Router(), "s", busy, IDLE) == 1


def test_requests_that_generate_count_although_they_compute_little() -> None:
    busy = replace(IDLE, pool_tokens=900, running=8)
    assert placed(Router(), "s", busy, IDLE) == 1


@pytest.mark.parametrize("name", ["most-reused", "least-to-do"])
def test_sessions_that_begin_alike_are_spread_by_the_router_and_gather_elsewhere(name: str) -> None:
    """Idle replicas, of which the first has the beginning that all prompts share."""
    rooms = replace(IDLE, pool_tokens=990), IDLE, IDLE
    router, other = Router(), POLICIES[name]()
    assert {placed(router, f"s{one}", *rooms) for one in range(6)} == {0, 1, 2}
    assert {placed(other, f"s{one}", *rooms) for one in range(6)} == {0}


def test_later_requests_follow_what_their_session_left_and_not_where_fewer_sessions_live() -> None:
    router = Router()
    assert placed(router, "s", replace(IDLE, pool_tokens=1), IDLE) == 0
    for number in range(4):
        placed(router, f"other {number}", replace(IDLE, pool_tokens=999), replace(IDLE, is_queue_full=True))
    assert placed(router, "s", replace(IDLE, pool_tokens=300), IDLE) == 0


def test_a_session_that_was_silent_for_long_is_placed_as_a_new_one() -> None:
    router, late = Router(Weights(session_seconds=60)), 59.9
    rooms = replace(IDLE, pool_tokens=500), IDLE
    placed(router, "s", *rooms)
    assert placed(router, "new", *rooms, seconds=late) == 1
    assert placed(router, "newer", *rooms, seconds=late + 0.2) == 0


def test_requests_without_a_session_do_not_live_anywhere() -> None:
    router = Router()
    rooms = replace(IDLE, pool_tokens=500), IDLE
    assert {placed(router, "", *rooms) for _ in range(9)} == {0}
    assert placed(router, "s", *rooms) == 0


def test_replicas_where_it_never_fits_or_that_are_full_come_last() -> None:
    never, full = Room(False, False, 1000), replace(IDLE, is_queue_full=True)
    loaded = replace(IDLE, tokens_ahead=90_000)
    assert placed(Router(), "", never, full, loaded) == 2
    assert placed(Router(), "", never, full) == 1
    assert placed(Router(), "", never, never) == 0


def test_of_equal_replicas_the_one_where_it_starts_first_at_the_latest_is_chosen() -> None:
    assert placed(Router(), "", replace(IDLE, most_steps=90), replace(IDLE, most_steps=80)) == 1


def test_simple_policies_do_what_they_are_called() -> None:
    rooms = replace(IDLE, running=3), replace(IDLE, running=1, waiting=1)
    robin, session, least = (POLICIES[name]() for name in ("round-robin", "session", "least-busy"))
    assert [placed(robin, "s", *rooms) for _ in range(3)] == [0, 1, 0]
    assert [placed(session, name, *rooms) for name in "aba"] == [0, 1, 0]
    assert placed(least, "s", *rooms) == 1
