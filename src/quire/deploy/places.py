"""What a replica needs of a machine, and how many replicas the machines of a cluster have room for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from quire.core.errors import PlanError
from quire.core.units import format_bytes
from quire.plan import bound
from quire.plan.plan import Plan

Resources = Mapping[str, float]
"""Ray's: by CPU, GPU or memory."""
FIXES = {"GPU": "", "CPU": "", "memory": "give each less with --memory-fraction or --pool, "}


def needs(plan: Plan, is_accelerator: bool) -> dict[str, float]:
    """Of one replica: a GPU for each of its ranks, or else its part of main memory."""
    if is_accelerator:
        return {"CPU": 1, "GPU": len(plan.ranks)}
    host = plan.host.budget_bytes if plan.host else 0
    return {"CPU": 1, "memory": host + sum(line.bytes for rank in plan.ranks for line in rank.ledger)}


def requests_at_once(plan: Plan, request_tokens: int) -> int:
    """Of this length, that one replica runs."""
    length = min(request_tokens, plan.max_length)
    return max(1, min(plan.max_requests, bound.concurrency(plan, length)))


def places(machines: Sequence[Resources], need: Resources) -> int:
    """How many replicas the machines hold together; one is never divided among machines."""
    return sum(min(math.floor(one.get(name, 0) / amount) for name, amount in need.items()) for one in machines)


def require_places(machines: Sequence[Resources], need: Resources, replicas: int) -> None:
    """Raises before anything is started if the fewest replicas cannot run at once."""
    found = places(machines, need)
    if found >= replicas:
        return
    short = min(need, key=lambda name: sum(one.get(name, 0) // need[name] for one in machines))
    here = sum(one.get(short, 0) for one in machines)
    fewer = f"lower --replicas to {found}" if found else "use another machine"
    one, all_of_them = _amount(short, need[short]), _amount(short, replicas * need[short])
    asked = f"{replicas} replicas need {all_of_them}, {one} each," if replicas > 1 else f"the replica needs {one},"
    where = f"{len(machines)} machine{'s' * (len(machines) != 1)}"
    raise PlanError(f"{asked} and Ray has {_amount(short, here)} on {where}: {FIXES[short]}{fewer} or add machines")


def _amount(name: str, amount: float) -> str:
    return f"{format_bytes(int(amount))} of memory" if name == "memory" else f"{amount:g} {name}{'s' * (amount != 1)}"
