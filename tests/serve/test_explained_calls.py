"""What a key learns about requests when it asks why one of its own waits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from quire.core.reasons import Reason, Why
from quire.explain.explanation import ANOTHER, Explanation
from quire.serve.keys import Tenant
from quire.serve.messages import RequestReport
from quire.serve.operations import _report
from quire.serve.service import Service

ALICE, ADMIN = Tenant("alice", "alice"), Tenant("admin", "", is_admin=True)
WAITS = Reason(Why.IN_LINE, ("bobs-0",), {"place": 2}, because=Reason(Why.PREFIX, ("alices-first-0",)))


def report(tenant: Tenant) -> dict[str, Any]:
    calls = {"1": ("alice", "x", ("alices-first-0",)), "2": ("alice", "y", ("own-0",)), "3": ("bob", "z", ("bobs-0",))}
    own = Service.names_of_tenant(SimpleNamespace(_calls=calls), tenant)  # type: ignore[arg-type]
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
