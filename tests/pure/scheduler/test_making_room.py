"""Who gives way when pages are short."""

from __future__ import annotations

import pytest

from cached_traffic import Traffic, plan_of, words


@pytest.mark.parametrize("in_flight", [0, 1])
def test_who_was_promised_to_stay_gives_way_to_an_elder_that_has_nothing_in_flight(in_flight: int) -> None:
    """A token of the elder that is in flight gives pages back when it settles: nobody has to leave for that."""
    traffic = Traffic(plan_of("full", rows=2))
    for name in ("elder", "promised"):
        traffic.submit(name, words(name, 9), 20)
    traffic.step()
    scheduler = traffic.engine.scheduler
    while scheduler.flying:
        traffic.step()
        scheduler.flying.clear()
    rows = scheduler.running.order()
    state = scheduler.rows
    state.is_reserved[rows[1]] = True
    state.computed[rows] = state.settled[rows]
    state.computed[rows[0]] += in_flight
    assert scheduler._make_room(rows[1:], "elder", is_elder=True) is (not in_flight)
    assert ("promised" in state.row_of) is bool(in_flight)
