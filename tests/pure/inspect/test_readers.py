"""A key that is not an admin's sees its own requests, leases and lookups; of others, how many and their memory."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quire.core.reasons import Reason, Why
from quire.core.rules import Policy, Rules
from quire.engine.engine import Engine
from quire.inspect.detail import request_document, request_view, sheet_document, sheet_view
from quire.inspect.document import ServerView, Subject, document
from quire.inspect.look import look
from quire.inspect.reader import Reader
from quire.prefix.leases import LeaseTerms
from quire.tiers.status import TierStatus
from small_engines import engine_for, request, small_plan

SECRETS = ("mallory", "request-of-hers", "her-session")


def submit_all(engine: Engine) -> None:
    for number in range(4):
        for tenant, name in (("alice", f"mine-{number}"), ("mallory", f"request-of-hers-{number}")):
            engine.submit(request(name, 60 + 9 * number, 30, shared=40, tenant=tenant, scope=tenant))


def two_tenants(steps: int) -> Engine:
    """On a pool in which not all of their requests fit."""
    engine, _ = engine_for(small_plan(["full", "window"], None, rows=3), rules=Rules(policy=Policy.FAIR))
    submit_all(engine)
    for _ in range(steps):
        engine.step()
    return engine


def lease_of_hers(engine: Engine) -> None:
    """Granted, on a prefix that her first request computes."""
    first = request("request-of-hers-first", 150, 4, tenant="mallory", scope="mallory")
    engine.submit(first)
    engine.drain()
    answer = engine.lease(LeaseTerms("her-session", "mallory", 60.0), "mallory", first.prompt)
    assert answer.refusal is None
    assert answer.size_bytes > 0


def reader_of(engine: Engine) -> Reader:
    return Reader("alice", {name for name in engine.history.names if name.startswith("mine")})


def shown(engine: Engine, reader: Reader | None) -> dict[str, Any]:
    return document(Subject.of(engine.scheduler.plan), ServerView("server", "ready"), look(engine), reader)


@pytest.mark.parametrize("steps", [0, 3, 20, 60, 120])
def test_no_name_of_another_tenant_is_in_any_byte(steps: int) -> None:
    """Neither hers, nor those of her requests and of the lease that she holds. An admin sees all three."""
    engine, _ = engine_for(small_plan(["full", "window"], 60, rows=3), rules=Rules(policy=Policy.FAIR))
    lease_of_hers(engine)
    submit_all(engine)
    for _ in range(steps):
        engine.step()
    own, whole = shown(engine, reader_of(engine)), shown(engine, None)
    assert whole["sessions"]["leases"]["name"] == ["her-session"]
    assert own["sessions"]["leases"]["name"] == []
    assert all(secret in json.dumps(whole) for secret in SECRETS)
    assert not secrets_in(own)
    for name in reader_of(engine).own:
        view = request_view(engine, name)
        assert view is None or not secrets_in(request_document(view, reader_of(engine)))
    for sheet in range(engine.scheduler.memories[0].stage.sheets):
        found = sheet_view(engine, 0, sheet)
        assert found is not None
        assert not secrets_in(sheet_document(found, reader_of(engine)))


def secrets_in(document: dict[str, Any]) -> list[str]:
    text = json.dumps(document)
    return [secret for secret in SECRETS if secret in text]


def test_reasons_are_those_of_the_readers_own_requests() -> None:
    """A reason, its numbers and how many wait for it are not shown if only other tenants' requests have it; each of the
    reader's requests keeps its own."""
    engine = two_tenants(9)
    found = look(engine)
    reasons = (
        Reason(Why.STEP_TOKENS, numbers={"tokens": 4711}),
        Reason(Why.MEMORY),
        Reason(Why.ROWS, numbers={"rows": 3}),
    )
    place_of = {"mine-0": 3, "request-of-hers-0": 3, "mine-1": 1, "mine-2": 2, "mine-3": 2}  # 3: it runs
    reason = np.array([place_of.get(name, 0) for name in found.requests.names])
    view = replace(found, requests=replace(found.requests, reasons=reasons, reason=reason))
    own = document(Subject.of(engine.scheduler.plan), ServerView("server", "ready"), view, reader_of(engine))
    assert own["requests"]["table"]["name"] == ["mine-0", "mine-1", "mine-2", "mine-3"]
    assert own["requests"]["table"]["reason"] == [2, 0, 1, 1]
    assert own["requests"]["reasons"]["code"] == ["memory", "rows"]
    assert own["status"]["waiting_by"] == {"memory": 1, "rows": 2}
    assert "4,711" not in json.dumps(own)


def test_sums_of_lookups_are_those_of_the_readers_own_requests() -> None:
    """From one document to the next, sums of all would give the length of her prompt and what of it was cached."""
    engine, _ = engine_for(small_plan(["full"], 60))
    for number, (tenant, name) in enumerate((("alice", "mine"), ("alice", "mine-too"))):
        engine.submit(request(name, 150 + number, 4, shared=150, tenant=tenant, scope=tenant))
        engine.drain()
    before = shown(engine, reader_of(engine))["reuse"]
    assert before["results"] == {"no_overlap": 1, "hit": 1}
    assert before["prompt_tokens"] == 301
    assert before["found_tokens"] == before["latest"]["found"][0] > 0
    engine.submit(request("request-of-hers", 97, 4, tenant="mallory", scope="mallory"))
    engine.drain()
    assert shown(engine, reader_of(engine))["reuse"] == before
    assert shown(engine, None)["reuse"]["prompt_tokens"] == 301 + 97


def test_hits_of_a_tier_are_shown_to_admins_alone() -> None:
    each = {"read": 5, "write": 3}
    tier = TierStatus("host", True, True, 7, 2, each, each, each, each, {})
    engine = two_tenants(9)
    server = ServerView("server", "ready", tiers=(tier,))
    subject, view = Subject.of(engine.scheduler.plan), look(engine)
    whole, own = document(subject, server, view)["tiers"], document(subject, server, view, reader_of(engine))["tiers"]
    assert (whole["hits"], whole["misses"]) == ([7], [2])
    assert (own["hits"], own["misses"]) == ([None], [None])
    assert own["read_bytes"] == whole["read_bytes"]


def test_own_requests_and_the_sums_of_others_make_the_whole() -> None:
    engine = two_tenants(9)
    own, whole = shown(engine, reader_of(engine))["requests"], shown(engine, None)["requests"]
    assert (own["running"], own["waiting"]) == (whole["running"], whole["waiting"])
    others = [name for name in whole["table"]["name"] if not name.startswith("mine")]
    assert own["others"]["running"] + own["others"]["waiting"] == len(others) > 0
    assert sum(own["table"]["bytes"]) + own["others"]["size_bytes"] == sum(whole["table"]["bytes"])
    assert set(own["table"]["name"]) == set(whole["table"]["name"]) - set(others)


def test_a_reader_sees_its_own_tenant_alone() -> None:
    engine = two_tenants(9)
    assert shown(engine, reader_of(engine))["sessions"]["tenants"]["name"] == ["alice"]
    assert shown(engine, None)["sessions"]["tenants"]["name"] == ["alice", "mallory"]


def test_that_another_scope_has_a_prefix_is_not_shown() -> None:
    """Admins see `scope`; others see that no cached prompt begins alike."""
    engine, _ = engine_for(small_plan(["full"], 60))
    for tenant, name in (("mallory", "request-of-hers"), ("alice", "mine")):
        engine.submit(request(name, 150, 4, shared=150, tenant=tenant, scope=tenant))
        engine.drain()
    whole, own = shown(engine, None)["reuse"], shown(engine, reader_of(engine))["reuse"]
    assert whole["latest"]["result"] == ["scope", "no_overlap"]
    assert own["latest"]["result"] == ["no_overlap"]
    assert own["results"] == {"no_overlap": 1}
