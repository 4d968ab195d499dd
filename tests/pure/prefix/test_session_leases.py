"""Leases of sessions: which of them a request moves, and what its room and its quota count while it runs."""

from __future__ import annotations

from cached_traffic import UNIT, Traffic, joined, with_leases, words
from quire.core.request import Retain
from quire.engine.engine import Stream
from quire.prefix.leases import LeaseEnded, LeaseRefusal, LeaseTerms

PROMPT = words("history", 6 * UNIT + 1)


def _end(traffic: Traffic, name: str, units: int, session: str = "", quota_bytes: int | None = None) -> Stream:
    """A request ends whose prompt has so many whole units, and asks for a lease."""
    retain = Retain(60, session, quota_bytes)
    stream = traffic.submit(name, PROMPT[: units * UNIT + 1], 1, retain=retain)
    traffic.finish()
    return stream


def _held(traffic: Traffic) -> dict[str, int]:
    return {lease.terms.name: lease.tokens // UNIT for lease in traffic.engine.leases()}


def test_the_lease_that_ends_furthest_along_the_prompt_moves() -> None:
    """Two sessions have one beginning, and a request that names none continues the longer one."""
    traffic = Traffic(with_leases("full"))
    _end(traffic, "short", 2, "one")
    _end(traffic, "long", 4, "two")
    _end(traffic, "next", 6)
    assert _held(traffic) == {"one": 2, "two": 6}


def test_a_lease_that_a_client_asked_for_does_not_move() -> None:
    """It is of what all its sessions begin with, and stays there."""
    traffic = Traffic(with_leases("full"))
    traffic.ask("first", PROMPT[: 2 * UNIT + 1])
    assert traffic.engine.lease(LeaseTerms("opening", "", 60.0), "", PROMPT[: 2 * UNIT]).refusal is None
    _end(traffic, "turn", 4)
    assert _held(traffic) == {"opening": 2, "turn": 4}


def test_a_request_that_leaves_nothing_leaves_its_sessions_lease_alone() -> None:
    """It is held, and nothing says that it ended."""
    traffic = Traffic(with_leases("full"))
    _end(traffic, "first", 4, "agent")
    traffic.submit("second", words("another", 30), 5, retain=Retain(60, session="agent"))
    traffic.engine.cancel("second")
    assert _held(traffic) == {"agent": 4}
    assert not [event for event in traffic.events if isinstance(event, LeaseEnded)]


def test_a_longer_turn_counts_in_the_quota_next_to_what_its_session_has() -> None:
    """The turn shares four pages of the lease that it will replace, and needs three more: the quota is for five."""
    traffic = Traffic(with_leases("full"))
    quota = 5 * traffic.scheduler.plan.stages[0].kinds[0].page_bytes
    _end(traffic, "first", 4, "agent", quota)
    answer = _end(traffic, "second", 6, "agent", quota).lease
    assert answer is not None
    assert answer.refusal is LeaseRefusal.QUOTA
    assert _held(traffic) == {"agent": 4}


def test_room_for_a_turn_does_not_count_on_leases_of_others() -> None:
    """Another lease has more of the prompt than the session's own, and ends while the turn runs: what both had shared
    is the turn's own from then on."""
    traffic = Traffic(with_leases("full", lease_sheets=9))
    traffic.ask("other", words("other", 4 * UNIT + 1))
    _end(traffic, "first", 2, "agent")
    traffic.ask("more", PROMPT[: 4 * UNIT + 1])
    assert traffic.engine.lease(LeaseTerms("more", "", 60.0), "", PROMPT[: 4 * UNIT]).refusal is None
    stream = traffic.submit("second", joined(PROMPT, words("said", 1)), 1, retain=Retain(60, session="agent"))
    assert stream.lease is not None
    assert stream.lease.refusal is None
    assert traffic.engine.release_lease("more")
    late = traffic.engine.lease(LeaseTerms("late", "", 60.0), "", words("other", 4 * UNIT))
    assert late.refusal is LeaseRefusal.MEMORY
    traffic.finish()
    assert _held(traffic) == {"agent": 6}


def test_the_earliest_time_for_a_turn_does_not_count_on_its_own_lease_once_that_has_ended() -> None:
    """Its session's lease ends first: the turn then needs all five pages itself, next to the four of another."""
    traffic = Traffic(with_leases("full", lease_sheets=7))
    traffic.ask("other", words("other", 4 * UNIT + 1))
    _end(traffic, "first", 2, "agent")
    other = traffic.engine.lease(LeaseTerms("other", "", 90.0), "", words("other", 4 * UNIT))
    answer = _end(traffic, "second", 4, "agent").lease
    assert answer is not None
    assert (answer.refusal, answer.earliest) == (LeaseRefusal.MEMORY, other.until)
