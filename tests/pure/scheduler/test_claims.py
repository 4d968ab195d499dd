"""Rows go back to tenants below their share: who gives, who gets, and how often."""

from __future__ import annotations

from collections import Counter

import pytest

from quire.core.events import Event, RequestAdmitted, RequestPreempted
from quire.core.reasons import Why
from quire.core.rules import Policy, Rules
from quire.engine.engine import Engine
from quire.scheduler.shares import Shares
from small_engines import engine_for, is_empty, request, run, small_plan


class Rowing:
    """An engine with fair shares and memory for all of its rows, and what happened to rows."""

    def __init__(self, rows: int) -> None:
        self.given: list[tuple[str, str]] = []
        """Who gave a row to whom."""
        self.admitted: Counter[str] = Counter()
        self.engine: Engine = engine_for(
            small_plan(["full"], 400, rows=rows), rules=Rules(policy=Policy.FAIR), listeners=[self._note]
        )[0]

    def _note(self, event: Event) -> None:
        if isinstance(event, RequestPreempted):
            assert event.reason.code is Why.NEEDS_ROW
            self.given.append((event.request, event.reason.requests[0]))
        elif isinstance(event, RequestAdmitted):
            self.admitted[event.request] += 1

    def send(self, tenant: str, count: int, outputs: int = 60, weight: float = 1.0, first: int = 0) -> None:
        for number in range(first, first + count):
            self.engine.submit(request(f"{tenant}{number}", 10, outputs, tenant=tenant, weight=weight))

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.engine.step()

    def held(self) -> Counter[str]:
        return Counter(ticket.request.tenant for ticket in self.engine.scheduler.running.tickets.values())


@pytest.mark.parametrize(
    ("rows", "weights", "shares"),
    [
        (8, {"a": 1.0}, {"a": 8.0}),
        (8, {"a": 1.0, "b": 1.0}, {"a": 4.0, "b": 4.0}),
        (8, {"a": 3.0, "b": 1.0}, {"a": 5.5, "b": 2.5}),
        (4, {"a": 1000.0, "b": 1.0, "c": 1.0}, {"a": 1 + 1000 / 1002, "b": 1 + 1 / 1002, "c": 1 + 1 / 1002}),
        (2, {"a": 9.0, "b": 1.0, "c": 1.0}, {"a": 1.0, "b": 1.0, "c": 1.0}),
    ],
)
def test_every_tenant_has_a_row_and_the_others_are_divided_by_weight(
    rows: int, weights: dict[str, float], shares: dict[str, float]
) -> None:
    books = Shares()
    for tenant, weight in weights.items():
        books.enter(tenant, weight)
    assert books.rows(rows) == pytest.approx(shares)


@pytest.mark.story
def test_a_tenant_without_a_row_gets_one_in_the_next_step_from_the_newest_request() -> None:
    """It waited until one of the other tenant's requests ended."""
    rowing = Rowing(4)
    rowing.send("alice", 9)
    rowing.step(5)
    assert rowing.held() == {"alice": 4}
    rowing.send("bob", 1)
    rowing.step()
    assert rowing.given == [("alice3", "bob0")]
    assert rowing.held() == {"alice": 3, "bob": 1}
    run(rowing.engine, 2_000)
    assert is_empty(rowing.engine)


def test_rows_go_back_one_a_step_up_to_half_of_the_share() -> None:
    """16 rows, two tenants: shares of 8. Bob gets four rows while alice's requests go on, carol then one of hers."""
    rowing = Rowing(16)
    rowing.send("alice", 20)
    rowing.step(3)
    rowing.send("bob", 9)
    for rows in (1, 2, 3, 4, 4, 4):
        rowing.step()
        assert rowing.held() == {"alice": 16 - rows, "bob": rows}
    rowing.send("carol", 1)
    rowing.step()
    assert rowing.held() == {"alice": 11, "bob": 4, "carol": 1}
    assert [who for who, _ in rowing.given] == ["alice15", "alice14", "alice13", "alice12", "alice11"]
    run(rowing.engine, 4_000)
    assert is_empty(rowing.engine)


def test_the_elder_keeps_its_row_and_so_does_a_tenants_only_one() -> None:
    rowing = Rowing(2)
    rowing.send("alice", 2)
    rowing.step(3)
    rowing.send("bob", 1)
    rowing.step(2)
    assert rowing.given == [("alice1", "bob0")]
    rowing.send("carol", 1)
    rowing.step(5)
    assert rowing.held() == {"alice": 1, "bob": 1}, "there are more tenants than rows"
    run(rowing.engine, 2_000)
    assert len(rowing.given) == 1


def test_a_tenant_that_comes_again_and_again_costs_others_no_more_than_two_preemptions_each() -> None:
    """A request that was preempted twice leaves a row free from then on: bob takes that one."""
    rowing = Rowing(4)
    rowing.send("alice", 4, outputs=200)
    rowing.step(3)
    for call in range(20):
        rowing.send("bob", 1, outputs=2, first=call)
        rowing.step()
        assert rowing.held()["bob"] == 1
        rowing.step(6)
    assert Counter(who for who, _ in rowing.given) == {"alice3": 2}
    run(rowing.engine, 4_000)
    assert is_empty(rowing.engine)


def test_two_tenants_that_always_want_more_do_not_exchange_rows() -> None:
    rowing = Rowing(6)
    rowing.send("alice", 30, outputs=20)
    rowing.step(2)
    rowing.send("bob", 30, outputs=20)
    run(rowing.engine, 4_000)
    assert is_empty(rowing.engine)
    assert rowing.given == [("alice5", "bob0")]


def test_a_tenant_that_was_served_more_takes_no_second_row() -> None:
    """Tokens count, too: rows must not undo what they have balanced."""
    rowing = Rowing(8)
    rowing.send("alice", 8, outputs=100)
    rowing.step(2)
    rowing.send("bob", 3)
    rowing.engine.scheduler.shares.charge("bob", 100_000)
    rowing.step(10)
    assert rowing.held() == {"alice": 7, "bob": 1}
    run(rowing.engine, 4_000)
