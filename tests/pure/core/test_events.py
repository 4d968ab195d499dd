"""Events carry their counts, and metrics add them up."""

from __future__ import annotations

from dataclasses import fields

import pytest

from event_kit import event_classes
from quire.core.events import (
    Event,
    Publisher,
    RequestAdmitted,
    RequestEnded,
    RequestPreempted,
    counted_fields,
)
from quire.core.reasons import Reason, WayBack, Why
from quire.core.request import Ending
from quire.engine.history import Counters
from quire.explain.events import reason_of
from quire.prefix.leases import LeaseEnded, LeaseHeld
from quire.prefix.points import RequestForked
from quire.traces.phases import FirstToken
from quire.warm.work import PrefixWarmed, TurnEnded, WarmEnded


def test_counts_at_their_default_are_left_out() -> None:
    event = RequestAdmitted(3, "r", hit_tokens=0, tokens=9, preemptions=0, miss=Why.NO_OVERLAP, missed_evicted=4)
    assert event.numbers == {"hit_tokens": 0, "tokens": 9, "preemptions": 0, "missed_evicted": 4}
    assert (event.label, reason_of(event)) == ("no_overlap", Reason(Why.NO_OVERLAP))
    hit = RequestAdmitted(3, "r", hit_tokens=4, tokens=9, preemptions=0)
    assert (hit.label, reason_of(hit)) == ("", None)


def test_a_preemption_has_the_costs_of_both_ways_among_its_numbers() -> None:
    event = RequestPreempted(3, "r", Reason(Why.NEEDS_PAGES, ("q",)), 2, WayBack(8, 64, 0.5, None))
    assert event.numbers == {"times": 2, "to_tier": 1, "load_microseconds": 500_000}


def test_every_event_has_a_name_of_its_own() -> None:
    others = {LeaseHeld, LeaseEnded, RequestForked, PrefixWarmed, WarmEnded, TurnEnded, FirstToken}
    assert {kind.name for kind in others} < set(event_classes())
    assert len(event_classes()) == 24
    for name, kind in event_classes().items():
        assert kind.name == name
        assert counted_fields(kind) == tuple(f.name for f in fields(kind) if f.type == "int")[1:]


def test_counters_add_up_by_event_and_label() -> None:
    counters = Counters()
    for outputs, ending in ((3, Ending.STOP), (4, Ending.LENGTH), (5, Ending.STOP)):
        counters(RequestEnded(0, "r", ending, outputs))
    assert counters.events == {(RequestEnded, "stop"): 2, (RequestEnded, "length"): 1}
    assert counters.sums == {(RequestEnded, "outputs"): 12}


@pytest.mark.parametrize("listeners", [0, 1, 2])
def test_every_listener_gets_every_event(listeners: int) -> None:
    heard: list[tuple[int, Event]] = []
    publisher = Publisher([lambda event, place=place: heard.append((place, event)) for place in range(listeners)])
    publisher.subscribe(lambda event: heard.append((9, event)))
    event = RequestEnded(0, "r", Ending.STOP, 1)
    publisher.publish(event)
    assert heard == [*((place, event) for place in range(listeners)), (9, event)]
