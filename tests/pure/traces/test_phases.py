"""Phases of a request, from its events and their times."""

from __future__ import annotations

import pytest

from quire.core.events import (
    LoadFailed,
    LoadFinished,
    LoadStarted,
    RequestAccepted,
    RequestAdmitted,
    RequestEnded,
    RequestEvent,
    RequestPreempted,
    RequestWaits,
    StepLaunched,
)
from quire.core.reasons import Reason, Why
from quire.core.request import Ending
from quire.scheduler.rows import Rows
from quire.traces.phases import FirstToken, Moment, Moments, Phase, RequestPhases
from small_engines import request

NEEDS, MEMORY, SILENT = Reason(Why.NEEDS_PAGES), Reason(Why.MEMORY), Reason(Why.NO_ANSWER)
ADMITTED = RequestAdmitted(0, "a", 0, 10, 0)


def phases_of(*events: RequestEvent, end: int | None = None) -> list[Phase]:
    """One event each 10 ns, after a submission at 0."""
    reading = RequestPhases(0)
    found = [reading.note(Moment(10 * number, event)) for number, event in enumerate(events, 1)]
    return [one for one in (*found, None if end is None else reading.end(end)) if one is not None]


def names_of(phases: list[Phase]) -> list[str]:
    return [one.name for one in phases]


def test_a_request_waits_computes_its_prompt_and_decodes() -> None:
    accepted, ended = RequestAccepted(0, "a", 10, 5), RequestEnded(9, "a", Ending.LENGTH, 5)
    phases = phases_of(accepted, ADMITTED, FirstToken(3, "a"), ended)
    assert [(one.name, one.begin_ns, one.end_ns) for one in phases] == [
        ("queue", 0, 20),
        ("prefill", 20, 30),
        ("decode", 30, 40),
    ]
    assert phases[1].numbers == {"found_tokens": 0, "tokens": 10}
    assert phases[2].numbers == {"outputs": 5}


def test_a_load_takes_the_place_of_the_prefill_that_it_begins_with() -> None:
    load, loaded = LoadStarted(0, "a", 8, 1), LoadFinished(2, "a", 8, 1, 0)
    phases = phases_of(ADMITTED, load, loaded, FirstToken(3, "a"), end=90)
    assert names_of(phases) == ["queue", "load", "prefill", "decode"]
    assert phases[1].numbers["load_tokens"] == 8
    assert (phases[1].begin_ns, phases[1].end_ns) == (10, 30)
    assert phases[2].numbers == {"found_tokens": 8}


def test_a_load_that_fails_says_why_and_the_request_waits_again() -> None:
    failed = LoadFailed(2, "a", SILENT, 8, 1)
    phases = phases_of(ADMITTED, LoadStarted(0, "a", 8, 1), failed, ADMITTED, end=90)
    assert names_of(phases) == ["queue", "load", "queue", "prefill"]
    assert [(one.is_failed, one.reason) for one in phases[:3]] == [(False, None), (True, SILENT), (False, None)]


@pytest.mark.parametrize("decodes", [True, False])
def test_a_preempted_request_computes_again_what_it_lost(decodes: bool) -> None:
    first = [FirstToken(3, "a")] if decodes else []
    phases = phases_of(
        ADMITTED, *first, RequestPreempted(4, "a", NEEDS, 1), RequestWaits(5, "a", MEMORY), ADMITTED, end=99
    )
    last = ["decode"] if decodes else []
    assert names_of(phases) == ["queue", "prefill", *last, "preempted", "prefill"]
    assert phases[-2].reason == NEEDS, "why it was preempted, whatever it waits for afterwards"
    assert phases[-2].numbers == {"times": 1}


def test_the_last_reason_of_a_wait_is_kept_with_the_queue_alone() -> None:
    other = Reason(Why.ROWS)
    phases = phases_of(RequestWaits(0, "a", MEMORY), RequestWaits(1, "a", other), ADMITTED, end=50)
    assert [one.reason for one in phases] == [other, None]


def test_phases_add_up_though_clocks_of_two_processes_disagree() -> None:
    """The engine's process may be a little behind the one that submitted."""
    reading = RequestPhases(1000)
    phase = reading.note(Moment(990, ADMITTED))
    assert phase is not None
    assert (phase.begin_ns, phase.end_ns) == (1000, 1000)
    assert reading.end(2000).begin_ns == 1000


def test_the_first_token_is_noted_once_for_each_admission() -> None:
    """After a preemption a request has outputs already: only a new one counts."""
    now = [0]
    moments, rows = Moments(lambda: now[0]), Rows(4)
    moments(RequestAccepted(0, "a", 10, 5))
    moments(ADMITTED)
    asked = request("a", 10, 5)
    row = rows.enter(asked, rows.outputs[0, :0])
    moments.look(rows, 1)
    assert [type(one.event) for one in moments.take()["a"]] == [RequestAccepted, RequestAdmitted]
    rows.output_counts[row] = 2
    now[0] = 7
    moments.look(rows, 2)
    moments.look(rows, 3)
    assert moments.take() == {"a": [Moment(7, FirstToken(2, "a"))]}
    moments(RequestPreempted(3, "a", NEEDS, 1))
    rows.enter(asked, rows.leave(row))
    moments(RequestAdmitted(4, "a", 0, 12, 1))
    moments.look(rows, 4)
    assert FirstToken not in {type(one.event) for one in moments.take()["a"]}
    rows.output_counts[rows.row_of["a"]] = 3
    moments.look(rows, 5)
    assert [type(one.event) for one in moments.take()["a"]] == [FirstToken]


def test_moments_of_requests_that_ended_are_forgotten() -> None:
    moments, rows = Moments(lambda: 0), Rows(4)
    for event in (RequestAccepted(0, "a", 10, 5), ADMITTED, RequestEnded(1, "a", Ending.CANCELLED, 0)):
        moments(event)
    moments(StepLaunched(1, 1, 1))
    assert list(moments.take()) == ["a"]
    moments.look(rows, 2)
    assert moments.take() == {}
    assert not moments._prompts
