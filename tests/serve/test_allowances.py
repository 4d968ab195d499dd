"""Allowances of tenants: requests at once, and tokens of a minute."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quire.serve.allowance import Allowances
from quire.serve.errors import ApiError
from quire.serve.keys import Tenant
from quire.serve.rate_limits import rate_limits
from serve_kit import Clock


def code_of(allowances: Allowances, tenant: Tenant, requests: int, tokens: int) -> str:
    try:
        allowances.enter(tenant, requests, tokens)
    except ApiError as error:
        return error.code
    return ""


def test_tokens_of_a_minute_come_back_second_by_second_and_unused_ones_at_once() -> None:
    clock = Clock()
    allowances, tenant = Allowances(10, clock), Tenant("t", "t", tokens_per_minute=600)
    assert code_of(allowances, tenant, 1, 600) == ""
    assert code_of(allowances, tenant, 1, 1) == "tokens_limit"
    clock.now += 10
    assert allowances.room(tenant) == 100
    assert allowances.room(replace(tenant, most_tokens=50)) == 50
    assert allowances.room(Tenant("u", "u")) is None
    assert code_of(allowances, tenant, 1, 101) == "tokens_limit"
    assert code_of(allowances, tenant, 1, 100) == ""
    allowances.leave(tenant, 1, 80)
    assert code_of(allowances, tenant, 1, 81) == "tokens_limit"
    assert code_of(allowances, tenant, 1, 80) == ""


def test_requests_are_counted_by_tenant_and_together() -> None:
    allowances = Allowances(4)
    one, two = Tenant("one", "", most_requests=2), Tenant("two", "")
    assert [code_of(allowances, one, 1, 1) for _ in range(3)] == ["", "", "requests_limit"]
    assert [code_of(allowances, two, 1, 1) for _ in range(3)] == ["", "", "queue_full"]
    allowances.leave(one, 1, 0)
    assert code_of(allowances, two, 1, 1) == ""
    assert allowances.total == 4
    assert code_of(allowances, two, 5, 1) == "requests_limit", "more choices than there is room for, ever"


def test_headers_say_what_is_left_of_a_keys_limits() -> None:
    clock = Clock()
    allowances, tenant = Allowances(10, clock), Tenant("t", "t", most_requests=4, tokens_per_minute=600)
    assert rate_limits(allowances, tenant)["x-ratelimit-reset-requests"] == "0s"
    allowances.enter(tenant, 3, 500)
    assert rate_limits(allowances, tenant) == {
        "x-ratelimit-limit-requests": "4",
        "x-ratelimit-remaining-requests": "1",
        "x-ratelimit-reset-requests": "3s",
        "x-ratelimit-limit-tokens": "600",
        "x-ratelimit-remaining-tokens": "100",
        "x-ratelimit-reset-tokens": "50s",
    }
    clock.now += 20
    assert rate_limits(allowances, tenant)["x-ratelimit-remaining-tokens"] == "300"
    assert rate_limits(allowances, replace(tenant, most_requests=None, tokens_per_minute=None)) == {}


@pytest.mark.story
def test_hours_without_requests_do_not_make_the_next_ones_wait_longer() -> None:
    clock = Clock()
    allowances, tenant = Allowances(1, clock), Tenant("t", "t")
    for _ in range(3):
        clock.now += 36_000
        allowances.enter(tenant, 1, 1)
        clock.now += 2
        allowances.leave(tenant, 1, 0)
    assert allowances.retry_seconds == 2
