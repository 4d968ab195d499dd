"""Leases in a tier: a session that pauses long leaves the pool, and its next request finds all of its tokens."""

from __future__ import annotations

import pytest

from cached_traffic import Clock, Traffic, joined, with_leases, words
from quire.check.promises import check_books
from quire.core.events import LoadFailed, LoadFinished, RequestEnded
from quire.core.reasons import Why
from quire.core.request import Retain, Tokens
from quire.core.sampling import Sampling
from quire.core.step import Step
from quire.core.tier import Load, TransferFailed
from quire.plan.plan import Plan
from quire.plan.records import Records
from quire.prefix.leases import (
    LeaseAnswer,
    LeaseEnded,
    LeaseEnding,
    LeaseMoved,
    LeaseRefusal,
    LeaseTerms,
    Where,
)
from quire.tiers.host_leases import LEASE_SHARE
from quire.tiers.in_memory import InMemoryStore, Transfer
from scenes_of_tiers import Idle

MIXES = [("full",), ("full", "window"), ("full", "state"), ("window", "state"), ("state",)]


class Host(InMemoryStore):
    """Host memory whose loads can be made to fail, and whose duration is given."""

    fails = False
    delay = 0.0
    """Seconds until a load that fails is answered."""
    return_seconds: float | None = None

    def transfer(self, load: Load) -> Transfer:
        transfer = super().transfer(load)
        if not self.fails:
            return transfer
        due = transfer.due + self.delay
        return Transfer(load, TransferFailed(load.number, "broken"), transfer.begun, due, transfer.records)

    def seconds_to_load(self, size_bytes: int) -> float | None:
        del size_bytes
        return self.return_seconds


class Copying(Idle):
    """A runner that copies what a step stores and loads."""

    def __init__(self, host: Host) -> None:
        super().__init__()
        self._host = host

    def launch(self, step: Step) -> None:
        for store in step.stores:
            self._host.note_stored(store.place.number)
        for number, _ in step.loads:
            self._host.note_landed(number)
        super().launch(step)


class Tiered(Traffic):
    """Traffic on a clock that the test sets, with host memory for a number of blocks."""

    def __init__(self, plan: Plan, blocks: int = 400) -> None:
        self.clock = Clock()
        self.host = Host(Records(plan), blocks, self.clock)
        super().__init__(plan, tier=self.host, keeper=self.host)
        self.engine.runner, self.engine.clock = Copying(self.host), self.clock

    def lease(self, name: str, tokens: Tokens, seconds: float = 1000.0) -> LeaseAnswer:
        return self.engine.lease(LeaseTerms(name, "", seconds), "", tokens)

    def turns(self, count: int, pause: float) -> Tokens:
        """A session that pauses between its turns; returns all that was said."""
        said = words("history", 30)
        for turn in range(count):
            stream = self.submit(f"turn {turn}", said, 7, retain=Retain(1000, session="agent"))
            self.finish()
            said = joined(said, stream.tokens(), words(f"tool {turn}", 5))
            self.clock.now += pause
        self.step()
        return said

    def endings(self) -> list[LeaseEnding]:
        return [event.ending for event in self.events if isinstance(event, LeaseEnded)]

    def where(self) -> list[Where]:
        return [lease.where for lease in self.engine.leases()]


@pytest.mark.parametrize("names", MIXES)
def test_a_lease_that_the_pool_has_no_room_for_is_kept_in_host_memory(names: tuple[str, ...]) -> None:
    """The answer says where. Its pages may be evicted; a request that continues it loads all of its tokens."""
    traffic, history = Tiered(with_leases(*names, lease_sheets=0)), words("history", 60)
    traffic.ask("first", history, 5)
    answer = traffic.lease("kept", history)
    assert (answer.refusal, answer.where) == (None, Where.HOST)
    traffic.finish()
    traffic.evict_all()
    again = traffic.submit("again", joined(history, words("more", 9)), 3)
    traffic.finish()
    assert again.ended is not None
    (loaded,) = [event for event in traffic.events if isinstance(event, LoadFinished)]
    assert loaded.tokens == answer.tokens > 0
    assert traffic.where() == [Where.HOST]


@pytest.mark.story
@pytest.mark.parametrize("names", MIXES)
def test_a_lease_of_a_prompt_with_branches_is_kept_in_host_memory(names: tuple[str, ...]) -> None:
    """Branches begin between two units. Where every kind grows, a tier has whole units alone, and so has the lease."""
    traffic, history = Tiered(with_leases(*names, lease_sheets=0)), words("history", 60)
    traffic.ask("first", history, 5, is_branch=True)
    answer = traffic.lease("kept", history)
    assert (answer.refusal, answer.where, answer.tokens) == (None, Where.HOST, 56 if names == ("full",) else 59)
    traffic.finish()
    traffic.evict_all()
    traffic.submit("again", joined(history, words("more", 9)), 3)
    traffic.finish()
    assert [event.tokens for event in traffic.events if isinstance(event, LoadFinished)] == [answer.tokens]


def test_a_session_that_pauses_for_long_leaves_the_pool_and_comes_back() -> None:
    """Usual pause above twice the time to return: after its second turn, whose pause is known. The next turn moves the
    lease back to the pool, where its end is."""
    traffic = Tiered(with_leases("full", "state"))
    traffic.host.return_seconds = 4.0
    said = traffic.turns(2, pause=9.0)
    assert traffic.where() == [Where.HOST]
    assert [event.lease for event in traffic.events if isinstance(event, LeaseMoved)] == ["agent"]
    traffic.evict_all()
    traffic.host.return_seconds = 5.0
    traffic.submit("turn 2", said, 7, retain=Retain(1000, session="agent"))
    traffic.finish()
    traffic.step()
    assert [event.tokens for event in traffic.events if isinstance(event, LoadFinished)] == [len(said) - 5 - 1]
    assert traffic.where() == [Where.POOL]
    assert set(traffic.endings()) == {LeaseEnding.REPLACED}


@pytest.mark.parametrize("pause", [0.0, 7.9])
def test_a_session_that_returns_soon_stays_in_the_pool(pause: float) -> None:
    traffic = Tiered(with_leases("full", "state"))
    traffic.host.return_seconds = 4.0
    traffic.turns(4, pause=pause)
    assert traffic.where() == [Where.POOL]


@pytest.mark.story
def test_a_turn_that_is_cancelled_before_it_begins_leaves_its_session_the_lease_that_it_has() -> None:
    """The pool has another conversation with the same beginning: a lease of that would be less than the tier keeps."""
    traffic = Tiered(with_leases("full", "state"))
    said = traffic.turns(3, 10.0)
    (before,) = traffic.engine.leases()
    traffic.evict_all()
    traffic.ask("other", joined(said[:16], words("other", 9)), 2)
    traffic.submit("again", said, 3, retain=Retain(1000, session="agent"))
    traffic.engine.cancel("again")
    assert traffic.engine.leases() == [before]
    traffic.submit("else", words("else", 30), 3, retain=Retain(1000, session="agent"))
    traffic.finish()
    assert [lease.tokens for lease in traffic.engine.leases()] == [32]


@pytest.mark.story
@pytest.mark.parametrize("found", [0, 16])
def test_a_lease_in_a_tier_is_renewed_there_if_the_pool_has_less(found: int) -> None:
    """Asked for again by its name with the same tokens, it is neither refused as absent nor made shorter."""
    traffic = Tiered(with_leases("full", "state"))
    said = traffic.turns(3, 10.0)
    (before,) = traffic.engine.leases()
    assert before.where is Where.HOST
    traffic.evict_all()
    if found:
        traffic.ask("other", joined(said[:found], words("other", 9)), 2)
    traffic.clock.now = 900.0
    again = traffic.lease("agent", said)
    assert (again.refusal, again.where, again.tokens, again.until) == (None, Where.HOST, before.tokens, 1900.0)
    (held,) = traffic.engine.leases()
    assert (held.tokens, held.until) == (before.tokens, 1900.0)


@pytest.mark.story
def test_a_failed_step_leaves_a_session_the_lease_that_a_tier_keeps() -> None:
    """Its turn was in progress, and would have moved the lease to the pool, which has nothing any more."""
    traffic = Tiered(with_leases("full", "state"))
    said = traffic.turns(3, 10.0)
    (before,) = traffic.engine.leases()
    traffic.submit("again", said, 30, retain=Retain(1000, session="agent"))
    for _ in range(4):
        traffic.step()
    assert [one.request.name for one in traffic.scheduler.abandon()] == ["again"]
    assert traffic.engine.leases() == [before]


@pytest.mark.story
@pytest.mark.parametrize("others", [[], ["other"]])
def test_a_lease_whose_time_has_passed_ends_with_its_turn_if_a_step_fails(others: list[str]) -> None:
    """Red if bookings of all turns go before the first turn ends, or if a turn that fails does not look at the time."""
    traffic = Tiered(with_leases("full", "state"))
    said = traffic.turns(3, 10.0)
    for name in others:
        traffic.submit(name, words(name, 30), 30, retain=Retain(5000))
    traffic.submit("again", said, 30, retain=Retain(1000, session="agent"))
    for traffic.clock.now in (30.0, 2000.0):
        traffic.step()
    assert traffic.where() == [Where.HOST]
    before = len(traffic.events)
    traffic.scheduler.abandon()
    ends = [event for event in traffic.events[before:] if isinstance(event, RequestEnded | LeaseEnded)]
    told = [event.request if isinstance(event, RequestEnded) else event.ending for event in ends]
    assert told == [*others, LeaseEnding.EXPIRED, "again", *(LeaseEnding.FAILED for _ in others)]


@pytest.mark.story
def test_a_released_lease_leaves_the_tier_though_its_next_turn_is_in_progress() -> None:
    """The turn has booked a lease of the same name: both end, with one word, and nothing is held afterwards."""
    traffic = Tiered(with_leases("full", "state"))
    said = traffic.turns(3, 10.0)
    assert traffic.where() == [Where.HOST]
    again = traffic.submit("again", said, 3, retain=Retain(1000, session="agent"))
    assert again.lease is not None
    assert again.lease.refusal is None
    assert traffic.engine.release_lease("agent")
    assert traffic.where() == []
    assert traffic.endings()[-1] is LeaseEnding.RELEASED
    ended = len(traffic.endings())
    traffic.finish()
    assert (traffic.where(), len(traffic.endings())) == ([], ended)
    assert not traffic.engine.release_lease("agent")


def test_a_lease_that_cannot_be_loaded_is_broken_visibly() -> None:
    """Its request computes its tokens; the lease ends with a reason of its own, and takes nothing any more."""
    traffic, history = Tiered(with_leases("full", "state", lease_sheets=0)), words("history", 60)
    traffic.ask("first", history, 5)
    traffic.lease("kept", history)
    traffic.finish()
    traffic.evict_all()
    traffic.host.fails = True
    again = traffic.submit("again", joined(history, words("more", 9)), 3)
    traffic.finish()
    assert again.ended is not None
    assert sum(isinstance(event, LoadFailed) for event in traffic.events) == 1
    assert traffic.endings() == [LeaseEnding.TIER]
    assert traffic.engine.leases() == []
    assert not traffic.host.cache.leased


@pytest.mark.story
def test_what_is_granted_to_a_request_does_not_break_with_its_sessions_lease_in_host_memory() -> None:
    """Room for its end was counted in the pool, whatever becomes of the records."""
    traffic = Tiered(with_leases("full", "state"))
    said = traffic.turns(2, pause=100.0)
    assert traffic.where() == [Where.HOST]
    traffic.evict_all()
    traffic.host.fails = True
    stream = traffic.submit("fails", said, 7, retain=Retain(1000, session="agent"))
    traffic.finish()
    assert stream.lease is not None
    assert stream.lease.refusal is None
    assert traffic.endings() == [LeaseEnding.REPLACED, LeaseEnding.TIER]
    (held,) = traffic.engine.leases()
    assert (held.terms.name, held.tokens) == ("agent", stream.lease.tokens - 1)


@pytest.mark.story
def test_a_failed_load_breaks_every_lease_of_its_prefix_and_no_other() -> None:
    """Two leases of one prefix count on the same records. One of another prefix has records of its own, and stays."""
    traffic, history = Tiered(with_leases("full", "state", lease_sheets=0)), words("history", 60)
    for name, tokens in (("one", history), ("two", history), ("other", words("other", 60))):
        traffic.ask(f"asks {name}", tokens, 5)
        assert traffic.lease(name, tokens).where is Where.HOST
        traffic.finish()
    traffic.evict_all()
    traffic.host.fails = True
    traffic.submit("again", joined(history, words("more", 9)), 3)
    traffic.finish()
    ended = {event.lease: event.ending for event in traffic.events if isinstance(event, LeaseEnded)}
    assert ended == {"one": LeaseEnding.TIER, "two": LeaseEnding.TIER}
    assert [lease.terms.name for lease in traffic.engine.leases()] == ["other"]


@pytest.mark.story
def test_a_lease_granted_while_its_records_are_loaded_is_broken_with_them() -> None:
    """The pool has the prefix again, from a request that reuses nothing; the lease is of the records that fail."""
    traffic, history = Tiered(with_leases("full", lease_sheets=0)), words("history", 60)
    traffic.ask("first", history, 5)
    early = traffic.lease("early", history)
    traffic.finish()
    traffic.evict_all()
    traffic.host.fails, traffic.host.delay = True, 1.0
    traffic.submit("again", joined(history, words("more", 9)), 3)
    traffic.submit("cold", history, 1, sampling=Sampling(prompt_logprobs=0))
    while "cold" in traffic.scheduler.rows.row_of or traffic.scheduler.queue.find("cold"):
        traffic.step()
    late = traffic.lease("late", history)
    assert (late.where, late.tokens) == (Where.HOST, early.tokens)
    traffic.clock.now = 2.0
    traffic.finish()
    ended = {event.lease: event.ending for event in traffic.events if isinstance(event, LeaseEnded)}
    assert ended == {"early": LeaseEnding.TIER, "late": LeaseEnding.TIER}


@pytest.mark.story
def test_a_request_whose_lease_is_back_in_the_pool_waits_for_no_load() -> None:
    """For a load it must be able to stay next to the others, which it is not. Then another request computes the same
    prompt, and nothing is to be loaded any more."""
    traffic, history = Tiered(with_leases("full", lease_sheets=0)), words("history", 60)
    traffic.scheduler.admission.typical_output = 1.0
    traffic.ask("first", history, 1)
    assert traffic.lease("kept", history).where is Where.HOST
    traffic.finish()
    traffic.evict_all()
    for name in ("elder", "second", "third"):
        traffic.submit(name, words(name, 20), 180)
    traffic.step()
    traffic.submit("again", joined(history, words("more", 9)), 3)
    traffic.submit("cold", history, 1, sampling=Sampling(prompt_logprobs=0))
    traffic.step()
    assert traffic.waiting("again").reason.code is Why.LEASED
    while "again" not in traffic.order():
        traffic.step()
    assert {"elder", "second", "third"} <= traffic.scheduler.rows.row_of.keys()
    assert traffic.admitted("again")["hit_tokens"] >= 56
    assert not any(isinstance(event, LoadFinished) for event in traffic.events)
    traffic.finish()


@pytest.mark.story
def test_a_request_that_found_its_lease_keeps_those_pages_if_there_is_no_room_to_load_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It gives up pages of windows for a load of its lease only: it waits for that one. Here the tier has more tokens
    than are leased, of another request."""
    traffic, history = Tiered(with_leases("full", "window", lease_sheets=0)), words("history", 60)
    longer = joined(history, words("longer", 60))
    traffic.ask("longer", longer, 1)
    traffic.finish()
    traffic.evict_all()
    traffic.ask("short", history, 1)
    answer = traffic.lease("kept", history)
    assert answer.where is Where.HOST
    traffic.finish()
    monkeypatch.setattr(traffic.scheduler.room, "make_at", lambda *_: False)
    traffic.submit("again", joined(longer, words("more", 9)), 3)
    traffic.step()
    assert traffic.admitted("again")["hit_tokens"] == answer.tokens
    check_books(traffic.scheduler)
    traffic.finish()


def test_host_memory_evicts_no_lease_and_keeps_leases_to_its_share() -> None:
    """Leases are refused when their share is full, with the time at which the pool has room and a tier that has."""
    plan = with_leases("full", lease_sheets=0)
    traffic, blocks = Tiered(plan, blocks=16), []
    for number in range(4):
        history = words(f"history {number}", 33)
        traffic.ask(f"first {number}", history, 1)
        blocks.append(traffic.lease(f"kept {number}", history).refusal)
        traffic.finish()
    held = int(LEASE_SHARE * 16) // 4
    assert blocks == [None] * held + [LeaseRefusal.MEMORY] * (4 - held)
    for number in range(6):
        traffic.ask(f"other {number}", words(f"other {number}", 100), 1)
    assert len(traffic.engine.leases()) == held
    traffic.evict_all()
    traffic.submit("again", joined(words("history 0", 33), words("more", 9)), 1)
    traffic.finish()
    (loaded,) = [event for event in traffic.events if isinstance(event, LoadFinished)]
    assert loaded.tokens == 32


def test_a_refused_request_is_told_of_the_tier_that_has_room() -> None:
    """Lease memory is full; the prefix can be leased in host memory once it is computed."""
    traffic = Tiered(with_leases("full", "state", lease_sheets=0))
    stream = traffic.submit("first", words("history", 40), 5, retain=Retain(60))
    assert stream.lease is not None
    assert (stream.lease.refusal, stream.lease.elsewhere) == (LeaseRefusal.MEMORY, Where.HOST)


def test_a_lease_in_a_tier_ends_in_time_and_with_its_scope() -> None:
    traffic, history = Tiered(with_leases("full", "state", lease_sheets=0)), words("history", 60)
    traffic.ask("first", history, 5)
    traffic.lease("short", history, seconds=10.0)
    traffic.lease("long", history)
    traffic.clock.now = 11.0
    traffic.step()
    assert traffic.endings() == [LeaseEnding.EXPIRED]
    traffic.engine.drop_cache()
    assert traffic.endings() == [LeaseEnding.EXPIRED, LeaseEnding.DROPPED]
    assert not traffic.host.cache.leased
