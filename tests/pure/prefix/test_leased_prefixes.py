"""Leases: a prefix stays usable until its lease ends, whatever memory others need."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from cached_traffic import UNIT, Clock, Traffic, joined, with_leases, words
from quire.cache.pool import Holder, Pool
from quire.core.errors import InputError
from quire.core.events import Event
from quire.core.reasons import Why
from quire.core.request import Retain, Tokens
from quire.core.step import Ints
from quire.explain.status import status_of
from quire.plan.plan import Plan
from quire.prefix.leases import LeaseAnswer, LeaseEnded, LeaseEnding, LeaseHeld, LeaseRefusal, LeaseTerms

MIXES = [("full",), ("window",), ("full", "window"), ("full", "state"), ("full", "window", "state"), ("state",)]


class Leased(Traffic):
    """Traffic of one tenant on a clock that the test sets."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.clock = self.engine.clock = Clock()

    def lease(self, name: str, tokens: Tokens, seconds: float = 100.0, **more: object) -> LeaseAnswer:
        terms = LeaseTerms(name, "", seconds, **more)  # type: ignore[arg-type]
        return self.engine.lease(terms, "", tokens)

    def ended(self) -> list[tuple[str, LeaseEnding]]:
        return [(event.lease, event.ending) for event in self.events if isinstance(event, LeaseEnded)]

    def press(self, count: int = 6) -> None:
        """Others fill the pool, one after another, and everything is evicted that can be."""
        for number in range(count):
            self.ask(f"other {len(self.events)} {number}", words(f"other {number}", 150), 20)
        self.evict_all()


@pytest.mark.parametrize("names", MIXES)
def test_a_leased_prefix_is_found_after_any_pressure(names: tuple[str, ...]) -> None:
    """Every kind keeps what a request needs to continue after the leased tokens; without the lease it is gone."""
    traffic, history = Leased(with_leases(*names)), words("history", 60)
    traffic.ask("first", history, 5)
    answer = traffic.lease("kept", history)
    assert answer.refusal is None
    assert answer.tokens > 0
    traffic.press()
    assert traffic.ask("again", joined(history, words("more", 9)))["hit_tokens"] >= answer.tokens
    assert traffic.engine.release_lease("kept")
    traffic.press()
    assert (
        "hit_tokens" not in traffic.ask("later", joined(history, words("else", 9)))
        or not traffic.admitted("later")["hit_tokens"]
    )


@pytest.mark.parametrize("names", MIXES)
def test_a_request_keeps_its_whole_turn(names: tuple[str, ...]) -> None:
    """Granted with the request, held from its end: the next turn finds all tokens but the last, which was not computed;
    where every kind grows, all whole units of them."""
    traffic, history = Leased(with_leases(*names)), words("history", 30)
    stream = traffic.submit("first", history, 7, retain=Retain(60))
    assert stream.lease is not None
    assert stream.lease.refusal is None
    traffic.finish()
    turn = joined(history, stream.tokens())
    (held,) = traffic.engine.leases()
    computed = len(turn) - 1
    assert held.tokens == (computed // UNIT * UNIT if names == ("full",) else computed)
    traffic.press()
    assert traffic.ask("second", joined(turn, words("user", 5)))["hit_tokens"] == held.tokens


def test_a_session_has_one_lease_that_moves_along() -> None:
    """The next turn continues the leased one, and its end takes the lease over; what it shares counts once."""
    traffic, history = Leased(with_leases("full", "window")), words("history", 30)
    for turn in range(4):
        stream = traffic.submit(f"turn {turn}", history, 7, retain=Retain(60))
        assert stream.lease is not None
        assert stream.lease.name == "turn 0"
        traffic.finish()
        history = joined(history, stream.tokens(), words(f"user {turn}", 6))
    (held,) = traffic.engine.leases()
    assert held.terms.name == "turn 0"
    assert traffic.ended() == [("turn 0", LeaseEnding.REPLACED)] * 3
    assert held.tokens == len(history) - 7


def test_a_session_that_grows_beyond_the_memory_keeps_what_it_has() -> None:
    """The answer says at once that the longer turn is not leased, and until when; the request runs."""
    traffic = Leased(with_leases("full", lease_sheets=6))
    stream = traffic.submit("first", words("history", 30), 7, retain=Retain(60))
    traffic.finish()
    longer = joined(words("history", 30), stream.tokens(), words("more", 60))
    again = traffic.submit("second", longer, 5, retain=Retain(60))
    assert again.lease is not None
    assert again.lease.refusal is LeaseRefusal.MEMORY
    assert again.lease.limit_bytes == 6 * traffic.scheduler.plan.stages[0].sheet_bytes
    traffic.finish()
    (held,) = traffic.engine.leases()
    assert held.tokens == 32


def test_a_refused_lease_says_when_and_how_much_is_possible() -> None:
    """The end of the lease that is in the way, and the longest earlier boundary that fits."""
    traffic = Leased(with_leases("full", lease_sheets=10))
    one, two = words("one", 49), words("two", 65)
    traffic.ask("one", one)
    traffic.ask("two", two)
    assert traffic.lease("first", one, 30.0).refusal is None
    refused = traffic.lease("second", two)
    assert (refused.refusal, refused.earliest, refused.fewer_tokens) == (LeaseRefusal.MEMORY, 30.0, 4 * UNIT)
    assert traffic.lease("second", two[: refused.fewer_tokens]).refusal is None
    traffic.clock.now = 30.0
    assert traffic.lease("third", two).refusal is None


@pytest.mark.story
def test_the_earliest_time_counts_what_is_shared_with_the_lease_that_ends() -> None:
    """Four of six pages are those of a lease that ends first, and the new one's own from then on: five sheets never
    suffice. Six do when another page is given back."""
    for lease_sheets, earliest in ((5, None), (6, 50.0)):
        traffic, history = Leased(with_leases("full", lease_sheets=lease_sheets)), words("history", 49)
        traffic.ask("first", history)
        traffic.ask("second", words("other", 17))
        assert traffic.lease("shared", history[: 4 * UNIT], 30.0).refusal is None
        assert traffic.lease("other", words("other", UNIT), 50.0).refusal is None
        refused = traffic.lease("late", history)
        assert (refused.refusal, refused.earliest) == (LeaseRefusal.MEMORY, earliest)


@pytest.mark.story
def test_a_lease_whose_time_is_over_is_not_in_the_way_of_a_request() -> None:
    """The engine was idle, and took no step since then."""
    traffic = Leased(with_leases("full", lease_sheets=5))
    traffic.ask("first", words("history", 33))
    assert traffic.lease("kept", words("history", 33), 5.0).refusal is None
    traffic.clock.now = 50.0
    stream = traffic.submit("second", words("other", 30), 3, retain=Retain(60))
    assert stream.lease is not None
    assert stream.lease.refusal is None
    assert traffic.ended() == [("kept", LeaseEnding.EXPIRED)]


@pytest.mark.story
def test_a_request_named_like_anothers_lease_has_a_lease_of_its_own() -> None:
    """Also like the lease that a request in progress has booked for its session."""
    traffic = Leased(with_leases("full"))
    traffic.submit("turn", words("one", 30), 3, retain=Retain(60), tenant="blue")
    traffic.finish()
    for number, tenant in ((2, "green"), (3, "red")):
        stream = traffic.submit("turn", words(tenant, 30), 3, retain=Retain(60), tenant=tenant)
        assert stream.lease is not None
        assert stream.lease.name == f"turn {number}"
        traffic.finish()
    assert {lease.terms.owner for lease in traffic.engine.leases()} == {"blue", "green", "red"}
    assert traffic.ended() == []


def test_a_lease_ends_at_its_time() -> None:
    """From then on it counts no more, and its prefix can be evicted."""
    traffic = Leased(with_leases("full", "state"))
    traffic.ask("first", words("history", 30))
    traffic.lease("kept", words("history", 30), 5.0)
    traffic.clock.now = 4.9
    traffic.step()
    assert len(traffic.engine.leases()) == 1
    traffic.clock.now = 5.0
    traffic.step()
    assert traffic.engine.leases() == []
    assert traffic.ended() == [("kept", LeaseEnding.EXPIRED)]
    assert traffic.index.leases.pages == [[0, 0]]
    traffic.evict_all()
    assert len(traffic.index.nodes) == 0


def test_a_lease_does_not_end_while_its_session_has_a_request() -> None:
    """Otherwise the room that the request was promised would not cover what it shares with the lease."""
    traffic, history = Leased(with_leases("full", "window")), words("history", 30)
    stream = traffic.submit("first", history, 3, retain=Retain(5.0))
    traffic.finish()
    traffic.submit("second", joined(history, stream.tokens(), words("more", 4)), 9, retain=Retain(5.0))
    traffic.step()
    traffic.clock.now = 50.0
    traffic.step()
    assert len(traffic.engine.leases()) == 1
    traffic.finish()
    (held,) = traffic.engine.leases()
    assert held.until == 55.0


@pytest.mark.story
def test_a_lease_whose_time_passed_ends_with_a_request_that_leaves_nothing() -> None:
    """A request of the session is cancelled before it has computed anything: the older lease ends at once, not a step
    later."""
    traffic = Leased(with_leases("full"))
    traffic.submit("first", words("history", 30), 5, retain=Retain(60, session="agent"))
    traffic.finish()
    traffic.submit("second", words("another", 30), 5, retain=Retain(60, session="agent"))
    traffic.clock.now += 100
    traffic.engine.scheduler.leasing.go_on(traffic.clock.now)
    assert len(traffic.engine.leases()) == 1
    traffic.engine.cancel("second")
    assert not traffic.engine.leases()
    assert traffic.ended()[-1][1] is LeaseEnding.EXPIRED


def test_tokens_that_were_not_computed_cannot_be_leased() -> None:
    traffic = Leased(with_leases("full"))
    assert traffic.lease("kept", words("absent", 40)).refusal is LeaseRefusal.ABSENT
    assert traffic.engine.leases() == []


def test_a_prefix_is_leased_in_its_scope_alone() -> None:
    traffic = Leased(with_leases("full"))
    traffic.ask("first", words("history", 40))
    answer = traffic.engine.lease(LeaseTerms("kept", "", 5.0), "another", words("history", 40))
    assert answer.refusal is LeaseRefusal.ABSENT


def test_an_owner_stays_within_its_quota() -> None:
    """Over it, leases are refused; none that it has is dropped."""
    traffic = Leased(with_leases("full"))
    page = traffic.scheduler.plan.stages[0].kinds[0].page_bytes
    traffic.ask("first", words("history", 33))
    traffic.ask("second", words("other", 33))
    assert traffic.lease("one", words("history", 33), quota_bytes=6 * page).refusal is None
    refused = traffic.lease("two", words("other", 33), quota_bytes=6 * page)
    assert (refused.refusal, refused.size_bytes, refused.limit_bytes) == (LeaseRefusal.QUOTA, 4 * page, 6 * page)
    assert refused.fewer_tokens == 2 * UNIT
    assert [lease.terms.name for lease in traffic.engine.leases()] == ["one"]


@pytest.mark.story
def test_a_quota_is_charged_the_same_whoever_else_leases_the_prefix() -> None:
    """Another key's lease of the same pages makes none of them free of charge: it may end at any time."""
    traffic = Leased(with_leases("full"))
    page = traffic.scheduler.plan.stages[0].kinds[0].page_bytes
    traffic.ask("first", words("history", 33))
    assert traffic.engine.lease(LeaseTerms("theirs", "another", 100.0), "", words("history", 33)).refusal is None
    refused = traffic.lease("ours", words("history", 33), quota_bytes=3 * page)
    assert (refused.refusal, refused.size_bytes, refused.fewer_tokens) == (LeaseRefusal.QUOTA, 4 * page, 3 * UNIT)
    assert traffic.lease("ours", words("history", 33), quota_bytes=4 * page).refusal is None


def test_a_lease_that_moves_is_charged_in_place_of_the_earlier_one() -> None:
    """The key has one lease afterwards, and its quota is for that one."""
    traffic = Leased(with_leases("full"))
    page = traffic.scheduler.plan.stages[0].kinds[0].page_bytes
    traffic.ask("first", words("history", 33))
    assert traffic.lease("ours", words("history", 17), quota_bytes=4 * page).tokens == 2 * UNIT
    assert traffic.lease("ours", words("history", 33), quota_bytes=4 * page).tokens == 4 * UNIT
    (held,) = traffic.engine.leases()
    assert held.size_bytes == 4 * page


def test_dropping_the_cache_breaks_its_leases_visibly() -> None:
    """Those of other scopes stay."""
    traffic = Leased(with_leases("full", "state"))
    traffic.ask("first", words("history", 30))
    traffic.ask("second", words("history", 30), scope="another")
    assert traffic.lease("own", words("history", 30)).refusal is None
    root = traffic.scheduler.reuse.root_of("another")
    terms = LeaseTerms("other", "", 50.0, scope=root[:8])
    assert traffic.engine.lease(terms, "another", words("history", 30)).refusal is None
    traffic.engine.drop_cache("another")
    assert traffic.ended() == [("other", LeaseEnding.DROPPED)]
    assert [lease.terms.name for lease in traffic.engine.leases()] == ["own"]


def test_names_of_leases_are_their_owners() -> None:
    traffic = Leased(with_leases("full"))
    traffic.ask("first", words("history", 30))
    traffic.lease("kept", words("history", 30))
    with pytest.raises(InputError, match="is there already"):
        traffic.engine.lease(LeaseTerms("kept", "another owner", 5.0), "", words("history", 30))
    assert not traffic.engine.release_lease("none of this name")


def test_leases_are_reported() -> None:
    traffic = Leased(with_leases("full"))
    traffic.ask("first", words("history", 30))
    traffic.lease("kept", words("history", 30))
    traffic.engine.release_lease("kept")
    told: list[Event] = [event for event in traffic.events if isinstance(event, LeaseHeld | LeaseEnded)]
    assert [(type(event), event.numbers) for event in told] == [
        (LeaseHeld, {"tokens": 3 * UNIT}),
        (LeaseEnded, {"tokens": 3 * UNIT}),
    ]


@pytest.mark.parametrize("names", MIXES)
def test_what_is_booked_for_a_request_covers_what_its_end_takes(names: tuple[str, ...]) -> None:
    """Wherever up to its limit it ends: so a lease that was granted is held."""
    traffic = Leased(with_leases(*names, lease_sheets=10_000))
    leases = traffic.index.leases
    for length in (1, 7, 8, 9, 30, 31, 32, 57, 90):
        name = f"turn of {length}"
        tokens = words(name, length)
        traffic.ask(name, tokens, 2)
        hit = traffic.index.find(*_keys(traffic, tokens), tokens, len(tokens))
        if hit.tokens:
            taken = leases.takes.along(leases._marked(hit.chain), is_counted=False)
            booked = leases.takes.up_to(length)
            assert (np.array(taken) <= np.array(booked)).all(), (length, taken, booked)


def _keys(traffic: Traffic, tokens: Tokens) -> tuple[list[bytes], bytes]:
    from quire.prefix.keys import keys_of

    root = traffic.scheduler.reuse.root_of("")
    return keys_of(root, tokens, UNIT), root


@pytest.mark.story
def test_a_lease_that_was_released_is_not_held_by_the_request_that_had_booked_it() -> None:
    """Two requests of a session: the lease is released while the first runs, and the second books it. The end of the
    first must not become the lease of the second."""
    traffic, one, two = Leased(with_leases("full", "state")), words("one", 30), words("two", 30)
    traffic.submit("first", one, 40, retain=Retain(60, session="agent"))
    traffic.step()
    assert traffic.engine.release_lease("agent")
    second = traffic.submit("second", two, 60, retain=Retain(60, session="agent"))
    assert second.lease is not None
    assert second.lease.refusal is None
    while "first" in traffic.engine.streams:
        traffic.step()
    assert traffic.engine.leases() == []
    traffic.finish()
    (held,) = traffic.engine.leases()
    assert held.tokens == len(two) + 60 - 1


@pytest.mark.parametrize("names", [("full", "state"), ("full",)])
def test_a_request_waits_for_room_to_copy_what_is_leased_to_it(names: tuple[str, ...]) -> None:
    """It could start without the leased prefix, and says why it does not: readers hold all free pages, and none is left
    to copy the leased state to, or the page that ends where the first request's branches began. When they let go, it
    starts after the lease."""
    traffic, history = Leased(with_leases(*names)), words("history", 20)
    traffic.ask("first", history, 2, is_branch=True)
    granted = traffic.lease("kept", history)
    assert granted.tokens % UNIT
    traffic.submit("elder", words("elder", 40), 30)
    for _ in range(4):
        traffic.step()
    traffic.evict_all()
    (memory,) = traffic.scheduler.memories
    held = [(kind, pages) for kind in range(len(memory.tables)) for pages in read_all(memory.pool, kind)]
    again = traffic.submit("again", joined(history, words("more", 5)), 2)
    traffic.step()
    ticket = traffic.scheduler.queue.find("again")
    assert ticket is not None
    assert ticket.reason is not None
    assert ticket.reason.code is Why.LEASED
    assert status_of(traffic.engine).waiting == {"leased": 1}
    for kind, pages in held:
        memory.pool.drop(kind, pages, Holder.PIN)
    traffic.finish()
    assert again.ended is not None
    assert traffic.admitted("again")["hit_tokens"] >= granted.tokens


def read_all(pool: Pool, kind: int) -> Iterator[Ints]:
    """Takes every page of a kind that is free, as a reader would."""
    while pool.sheets_wanted([int(kind == other) for other in range(len(pool.shelves))]) <= pool.free_sheets:
        pages = pool.take(kind, 1)
        pool.hold(kind, pages, Holder.PIN)
        pool.drop(kind, pages, Holder.REQUEST)
        yield pages
