"""What a plan says of a lease before it exists is what an engine counts for it."""

from __future__ import annotations

import pytest

from quire.core.request import Retain
from quire.plan.plan import Plan
from quire.prefix.lease_sizes import lease_pages, lease_sheets
from small_engines import engine_for, request, run, small_plan
from small_kinds import KINDS

SHAREABLE = [name for name in KINDS if not small_plan([name], 64).no_reuse_because]


def _bytes(plan: Plan, length: int) -> int:
    both = zip(plan.stages, lease_pages(plan, length), strict=True)
    return sum(kind.page_bytes * n for stage, own in both for kind, n in zip(stage.kinds, own, strict=True))


@pytest.mark.parametrize("length", [1, 40, 64, 130, 200])
@pytest.mark.parametrize("names", [[name] for name in SHAREABLE] + [SHAREABLE], ids="+".join)
def test_a_request_that_asks_for_a_lease_is_counted_as_the_plan_says(names: list[str], length: int) -> None:
    """The room that is counted when a request is accepted is that of a lease of its whole length; the lease that is
    held when it has ended takes no more."""
    plan = small_plan(names, 512)
    engine, _ = engine_for(plan)
    stream = engine.submit(request("one", length, 20, retain=Retain(60.0)))
    assert stream.lease is not None
    assert stream.lease.refusal is None
    assert stream.lease.size_bytes == _bytes(plan, length + 20)
    run(engine, 400)
    for lease in engine.leases():
        assert lease.size_bytes <= _bytes(plan, length + 20)


def test_leases_that_share_nothing_are_rounded_up_to_sheets_together() -> None:
    """Pages of several leases lie in the same sheets: their sheets are at most the sum of each one's."""
    plan = small_plan(SHAREABLE, 512)
    one, many = lease_sheets(plan, 100), lease_sheets(plan, 100, 7)
    assert all(a <= b <= 7 * a for a, b in zip(one, many, strict=True))
    assert lease_sheets(plan, 100, 0) == [0] * len(plan.stages)
