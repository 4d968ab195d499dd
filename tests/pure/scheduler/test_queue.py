"""The order in which queued requests are let in: claims, cached prefixes, patience."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from quire.core.errors import QueueFull
from quire.core.request import Request
from quire.core.rules import Policy
from quire.scheduler import queue as module
from quire.scheduler.queue import PATIENCE, FairQueue, Queue, Ticket, claim_of
from quire.scheduler.shares import Shares


def came(
    arrival: int, priority: int = 0, tenant: str = "", policy: Policy = Policy.FIRST_COME, prompt: int = 1
) -> Ticket:
    tokens = np.ones(prompt, dtype=np.int32)
    request = Request(f"r{arrival}", tokens, 1, priority=priority, tenant=tenant)
    return Ticket(request, arrival, claim_of(request, arrival, policy))


def queue_of(*requests: Ticket) -> Queue:
    queue = Queue(100_000)
    for one in requests:
        queue.add(one)
    return queue


def order(queue: Queue) -> list[int]:
    return [one.arrival for one in queue.in_turn()]


def let_in(queue: Queue, waiting: Ticket) -> None:
    queue.remove(waiting)
    queue.admissions += 1


# ── first come, and cached prefixes ───────────────────────────────────────


def test_without_cached_prefixes_requests_go_in_the_order_of_arrival() -> None:
    queue = queue_of(*map(came, (3, 0, 2, 1)))
    assert order(queue) == [0, 1, 2, 3]
    assert [one.arrival for one in queue] == [0, 1, 2, 3]
    elder = queue.elder()
    assert elder is not None
    assert elder.arrival == 0


def test_first_come_disregards_priorities() -> None:
    assert order(queue_of(came(0), came(1, priority=9))) == [0, 1]


def test_the_longest_cached_prefix_goes_first_then_the_others_in_the_order_of_arrival() -> None:
    requests = [came(arrival) for arrival in range(6)]
    queue = queue_of(*requests)
    for arrival, tokens in ((2, 64), (4, 130_000), (5, 64)):
        queue.prefer(requests[arrival], tokens)
    assert order(queue) == [4, 2, 5, 0, 1, 3]
    assert [one.arrival for one in queue] == list(range(6)), "the order of arrival is another question"


def test_a_preference_can_change_and_end() -> None:
    requests = [came(arrival) for arrival in range(4)]
    queue = queue_of(*requests)
    queue.prefer(requests[3], 64)
    queue.prefer(requests[2], 128)
    assert order(queue) == [2, 3, 0, 1]
    queue.prefer(requests[3], 256)
    assert order(queue) == [3, 2, 0, 1]
    queue.prefer(requests[2], 0)
    assert order(queue) == [3, 0, 1, 2]
    queue.prefer(requests[3], 0)
    assert order(queue) == [0, 1, 2, 3]


def test_of_equal_priority_cached_ones_go_first_and_never_before_a_higher_one() -> None:
    policy = Policy.PRIORITY
    requests = [came(arrival, priority, policy=policy) for arrival, priority in enumerate((0, 0, 5, 5, 9, -3))]
    queue = queue_of(*requests)
    assert order(queue) == [4, 2, 3, 0, 1, 5]
    queue.prefer(requests[1], 100_000)
    queue.prefer(requests[3], 8)
    queue.prefer(requests[5], 1_000_000)
    assert order(queue) == [4, 3, 2, 1, 0, 5]


def test_all_of_one_priority_may_be_cached() -> None:
    requests = [came(arrival, arrival % 2, policy=Policy.PRIORITY) for arrival in range(6)]
    queue = queue_of(*requests)
    for arrival in (0, 2, 4):
        queue.prefer(requests[arrival], 8 + arrival)
    assert order(queue) == [1, 3, 5, 4, 2, 0]


# ── patience ──────────────────────────────────────────────────────────────


def pass_by(queue: Queue, count: int, first: int = 1_000) -> None:
    """So many that have more in the cache come and go before those that wait."""
    for arrival in range(first, first + count):
        one = came(arrival, policy=Policy.PRIORITY)
        queue.add(one)
        queue.prefer(one, 640)
        assert order(queue)[0] == arrival
        let_in(queue, one)


@pytest.mark.story
def test_others_go_before_a_request_by_so_many_admissions_and_no_more() -> None:
    """It was the first of all: each admission is one that went before it. Two more than promised did."""
    queue = queue_of(came(0))
    pass_by(queue, PATIENCE)
    late = came(5_000)
    queue.add(late)
    queue.prefer(late, 640)
    assert order(queue) == [0, 5_000]


def test_admissions_of_those_who_came_before_do_not_count() -> None:
    """Nobody is passed by requests that would have gone first in any case."""
    queue = queue_of(*map(came, range(2_000)))
    last = queue.find("r1999")
    assert last is not None
    for arrival in range(1_999):
        one = queue.find(f"r{arrival}")
        assert one is not None
        let_in(queue, one)
    assert not queue.is_overdue(last)
    pass_by(queue, PATIENCE, first=3_000)
    assert queue.is_overdue(last)


def test_of_several_that_were_patient_the_elder_goes_first_cached_or_not() -> None:
    requests = [came(arrival) for arrival in range(3)]
    queue = queue_of(*requests)
    queue.admissions = 10 * PATIENCE
    late = came(3)
    queue.add(late)
    for one in (*requests[1:], late):
        queue.prefer(one, 64 * one.arrival)
    assert order(queue) == [0, 1, 2, 3]


def test_a_preempted_request_keeps_its_turn() -> None:
    one = came(0)
    queue = queue_of(one)
    turn = one.turn
    let_in(queue, one)
    queue.admissions += 10 * PATIENCE
    queue.add(one, returning=True)
    assert one.turn == turn
    assert queue.is_overdue(one)


@pytest.mark.story
def test_patience_ends_within_each_priority_though_higher_ones_have_just_come() -> None:
    """A request that waits for long goes before cached ones of its own priority, after all of a higher one. It did not
    while one of those was at the head of the line."""
    policy = Policy.PRIORITY
    old, high = came(0, policy=policy), came(9_000, 5, policy=policy)
    queue = queue_of(old)
    queue.admissions = 10 * PATIENCE
    fresh = came(8_000, policy=policy)
    for one in (fresh, high):
        queue.add(one)
    queue.prefer(fresh, 640)
    assert order(queue) == [9_000, 0, 8_000]


# ── fair shares ───────────────────────────────────────────────────────────


def fair_queue(*requests: Ticket, served: dict[str, int] | None = None) -> FairQueue:
    shares = Shares()
    shares.enter("heavy", 2.0)
    for tenant, tokens in (served or {}).items():
        shares.charge(tenant, tokens)
    queue = FairQueue(100_000, shares)
    for one in requests:
        queue.add(one)
    return queue


def test_tenants_take_turns_and_each_ones_longest_cached_prefix_goes_first() -> None:
    requests = [came(arrival, tenant="a" if arrival < 3 else "b", policy=Policy.FAIR) for arrival in range(6)]
    queue = fair_queue(*requests)
    assert order(queue) == [0, 3, 1, 4, 2, 5]
    queue.prefer(requests[2], 64)
    queue.prefer(requests[5], 640)
    assert order(queue) == [2, 5, 0, 3, 1, 4], "more in the cache does not change whose turn it is"


def test_a_tenant_that_was_served_less_goes_before_one_with_more_in_the_cache() -> None:
    requests = [came(0, tenant="a", policy=Policy.FAIR), came(1, tenant="b", policy=Policy.FAIR)]
    queue = fair_queue(*requests, served={"a": 100_000})
    queue.prefer(requests[0], 640)
    assert order(queue) == [1, 0]


def test_a_tenant_of_twice_the_weight_has_two_turns_for_one() -> None:
    tenants = ["heavy"] * 4 + ["b"] * 4
    requests = [came(place, tenant=tenant, policy=Policy.FAIR, prompt=100) for place, tenant in enumerate(tenants)]
    line = order(fair_queue(*requests))
    assert [tenants[one] for one in line[:6]].count("heavy") == 4


def test_a_patient_request_goes_before_its_tenants_cached_ones() -> None:
    requests = [came(arrival, tenant="a", policy=Policy.FAIR) for arrival in range(2)]
    queue = fair_queue(*requests)
    queue.admissions = 10 * PATIENCE
    late = came(2, tenant="a", policy=Policy.FAIR)
    queue.add(late)
    queue.prefer(late, 640)
    assert order(queue) == [0, 1, 2]


@pytest.mark.story
def test_patient_requests_of_a_tenant_go_in_the_order_of_arrival() -> None:
    """A tenant with many requests waits for long, so that all of them are patient: more in the cache is no claim then,
    or those without would be passed for ever."""
    requests = [came(arrival, tenant="a", policy=Policy.FAIR) for arrival in range(3)]
    queue = fair_queue(*requests)
    queue.admissions = 10 * PATIENCE
    queue.prefer(requests[2], 640)
    queue.prefer(requests[1], 64)
    assert order(queue) == [0, 1, 2]


def test_a_priority_moves_a_request_before_its_own_tenants_and_no_others() -> None:
    """A tenant's turns do not depend on the priorities that it gives, nor on those that others give."""
    tenants = "ababab"

    def turns(*priorities: int) -> tuple[list[int], str]:
        given = enumerate(zip(priorities, tenants, strict=True))
        requests = [came(place, priority, tenant, Policy.FAIR, 10) for place, (priority, tenant) in given]
        line = order(fair_queue(*requests))
        return line, "".join(tenants[one] for one in line)

    assert turns(0, 0, 0, 0, 0, 0) == ([0, 1, 2, 3, 4, 5], "ababab")
    line, whose = turns(0, 0, 9, 0, 5, 0)
    assert [one for one in line if tenants[one] == "a"] == [2, 4, 0]
    assert [one for one in line if tenants[one] == "b"] == [1, 3, 5]
    assert sorted(whose[:2]) == sorted(whose[2:4]) == sorted(whose[4:]) == ["a", "b"]


def test_of_a_tenant_a_higher_priority_goes_before_a_cached_prefix() -> None:
    requests = [came(arrival, priority, "a", Policy.FAIR) for arrival, priority in enumerate((0, 0, 1))]
    queue = fair_queue(*requests)
    queue.prefer(requests[1], 640)
    assert order(queue) == [2, 1, 0]
    queue.admissions = 10 * PATIENCE
    assert order(queue) == [2, 0, 1], "patience ends within a priority"


# ── the queue ─────────────────────────────────────────────────────────────


def test_a_full_queue_takes_those_that_return_and_no_others() -> None:
    queue = Queue(2)
    queue.add(came(0))
    queue.add(came(1))
    with pytest.raises(QueueFull, match="2 requests wait already"):
        queue.add(came(2))
    queue.add(came(3), returning=True)
    assert order(queue) == [0, 1, 3]


def test_whoever_comes_or_goes_meanwhile_does_not_change_a_turn_that_has_begun() -> None:
    requests = [came(arrival) for arrival in range(5)]
    queue = queue_of(*requests)
    queue.prefer(requests[4], 64)
    line = queue.in_turn()
    assert next(line).arrival == 4
    for one in (requests[4], requests[1]):
        queue.remove(one)
    queue.add(came(9))
    assert [one.arrival for one in line] == [0, 1, 2, 3]


@pytest.mark.law
@pytest.mark.parametrize("policy", list(Policy))
def test_thousands_come_and_go_in_the_order_that_sorting_them_gives(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """3,000 requests with up to a million cached tokens come, are preferred, and are let in or cancelled."""
    monkeypatch.setattr(module, "PATIENCE", 40)
    random, shares = Random(policy.value), Shares()
    shares.enter("a", 3.0)
    queue = FairQueue(10_000, shares) if policy is Policy.FAIR else Queue(10_000)
    waiting: dict[int, Ticket] = {}
    for arrival in range(3_000):
        one = came(arrival, random.randint(0, 2), random.choice("abc"), policy, random.randint(1, 9))
        queue.add(one)
        waiting[arrival] = one
        for other in random.sample(sorted(waiting), min(3, len(waiting))):
            queue.prefer(waiting[other], random.choice((0, 0, 8, random.randint(1, 1_000_000))))
        if random.random() < 0.9:
            first = next(queue.in_turn())
            let_in(queue, first)
            shares.charge(first.request.tenant, len(first.request.prompt))
            del waiting[first.arrival]
        if arrival % 300 == 299:
            gone = waiting.pop(random.choice(sorted(waiting)))
            queue.remove(gone)
            expected = sorted_line(list(waiting.values()), queue, policy, shares)
            assert order(queue) == [one.arrival for one in expected]
            assert queue.find(gone.request.name) is None
    assert len(queue) == len(waiting) > 200
    assert any(map(queue.is_overdue, waiting.values()))
    assert not all(map(queue.is_overdue, waiting.values()))
    for one in list(waiting.values()):
        queue.remove(one)
    assert order(queue) == list(queue) == []
    assert queue.elder() is None


def sorted_line(waiting: list[Ticket], queue: Queue, policy: Policy, shares: Shares) -> list[Ticket]:
    """From the definition: by priority where that counts; the patient in the order of arrival, then the longest cached
    prefix first, then the others."""

    def place(one: Ticket) -> tuple[int, int, int]:
        return (0, 0, one.arrival) if queue.is_overdue(one) else (1, -one.cached, one.arrival)

    if policy is not Policy.FAIR:
        return sorted(waiting, key=lambda one: (one.claim[0], place(one)))
    line = sorted(waiting, key=lambda one: (-one.request.priority, place(one)))
    own = {tenant: [one for one in line if one.request.tenant == tenant] for tenant in "abc"}
    served, line = {tenant: shares.served(tenant) for tenant in "abc"}, []
    while any(own.values()):
        tenant = min((one for one in "abc" if own[one]), key=lambda one: (served[one], own[one][0].arrival))
        line.append(own[tenant].pop(0))
        served[tenant] += len(line[-1].request.prompt) / shares.weight(tenant)
    return line
