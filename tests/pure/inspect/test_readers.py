"""A key that is not an admin's sees its own requests, leases and lookups; of others, sums without names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quire.core.rules import Policy, Rules
from quire.engine.engine import Engine
from quire.inspect.detail import request_document, request_view, sheet_document, sheet_view
from quire.inspect.document import ServerView, Subject, document
from quire.inspect.look import look
from quire.inspect.reader import Reader
from quire.prefix.leases import LeaseTerms
from small_engines import engine_for, request, small_plan

SECRETS = ("mallory", "request-of-hers", "her-session")


def two_tenants(steps: int) -> Engine:
    engine, _ = engine_for(small_plan(["full", "window"], None, rows=3), rules=Rules(policy=Policy.FAIR))
    for number in range(4):
        for tenant, name in (("alice", f"mine-{number}"), ("mallory", f"request-of-hers-{number}")):
            engine.submit(request(name, 60 + 9 * number, 30, shared=40, tenant=tenant, scope=tenant))
    for _ in range(steps):
        engine.step()
    return engine


def reader_of(engine: Engine) -> Reader:
    return Reader("alice", {name for name in engine.history.names if name.startswith("mine")})


def shown(engine: Engine, reader: Reader | None) -> dict[str, Any]:
    return document(Subject.of(engine.scheduler.plan), ServerView("server", "ready"), look(engine), reader)


@pytest.mark.parametrize("steps", [0, 3, 20, 60, 120])
def test_no_name_of_another_tenant_is_in_any_byte(steps: int) -> None:
    engine = two_tenants(steps)
    tokens = request("request-of-hers-0", 60, 30, shared=40).prompt
    engine.lease(LeaseTerms("her-session", "mallory", 60.0), "mallory", tokens)
    whole, hers = json.dumps(shown(engine, reader_of(engine))), json.dumps(shown(engine, None))
    assert not [secret for secret in SECRETS if secret in whole]
    assert "mallory" in hers
    for name in reader_of(engine).own:
        view = request_view(engine, name)
        if view is not None:
            assert not [secret for secret in SECRETS if secret in json.dumps(request_document(view, reader_of(engine)))]
    for sheet in range(engine.scheduler.memories[0].stage.sheets):
        found = sheet_view(engine, 0, sheet)
        assert found is not None
        assert not [one for one in SECRETS if one in json.dumps(sheet_document(found, reader_of(engine)))]


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
    assert own["results"] == {"no_overlap": 2}
