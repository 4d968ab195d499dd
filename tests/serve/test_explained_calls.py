"""What a key learns about requests when it asks why one of its own waits."""

from __future__ import annotations

import asyncio
from typing import Any

from quire.core.reasons import Reason, Why
from quire.explain.explanation import ANOTHER, Explanation
from quire.serve.keys import Tenant
from quire.serve.messages import RequestReport
from quire.serve.operations import _report
from quire.serve.registry import CallRegistry

ALICE, ADMIN = Tenant("alice", "alice"), Tenant("admin", "", is_admin=True)
WAITS = Reason(Why.IN_LINE, ("bobs-0",), {"place": 2}, because=Reason(Why.PREFIX, ("alices-first-0",)))


def report(tenant: Tenant) -> dict[str, Any]:
    calls = {"1": ("alice", "x", ("alices-first-0",)), "2": ("alice", "y", ("own-0",)), "3": ("bob", "z", ("bobs-0",))}
    registry = CallRegistry()
    for call, (owner, request_id, names) in calls.items():
        registry.note(call, Tenant(owner, owner), request_id, names)
    own = asyncio.run(registry.names_of_tenant(tenant))
    return _report(RequestReport("own-0", Explanation("own-0", "waiting", WAITS, None), ()), tenant, own)


def test_a_tenant_sees_its_own_other_calls_by_name_and_no_others() -> None:
    found = report(ALICE)
    assert (found["code"], found["requests"]) == (Why.IN_LINE, (ANOTHER,))
    assert (found["because"]["code"], found["because"]["requests"]) == (Why.PREFIX, ("alices-first-0",))
    assert "alices-first-0" in found["reason"]
    assert "bobs" not in str(found)


def test_an_admin_sees_all_of_them() -> None:
    found = report(ADMIN)
    assert (found["requests"], found["because"]["requests"]) == (("bobs-0",), ("alices-first-0",))


def test_a_call_is_found_by_its_answers_id_its_own_and_the_engines_name_of_a_choice() -> None:
    """The last is what the inspector shows. Names of other tenants find nothing."""
    registry = CallRegistry()
    names = ("5f0c-0", "5f0c-1")
    registry.note("5f0c", ALICE, "mine", names)
    found = {
        asked: asyncio.run(registry.names_of(asked, ALICE))
        for asked in ("chatcmpl-5f0c", "resp_5f0c", "mine", "5f0c-1", "5f0c-2", "5f0c")
    }
    assert found == {
        "chatcmpl-5f0c": names,
        "resp_5f0c": names,
        "mine": names,
        "5f0c-1": ("5f0c-1",),
        "5f0c-2": (),
        "5f0c": names,
    }
    assert asyncio.run(registry.names_of("5f0c-1", Tenant("bob", "bob"))) == ()
    assert asyncio.run(registry.names_of("5f0c-1", ADMIN)) == ("5f0c-1",)
