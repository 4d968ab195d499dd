"""What a replica needs of a machine, and how many replicas the machines of a cluster have room for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.build.bundles import Resources, amount_of, bundles_of, needs_of_ranks, sum_of
from quire.core.errors import PlanError
from quire.options.ranks import RAY
from quire.options.run import RunOptions
from quire.plan import bound
from quire.plan.plan import Plan

FIXES = {"GPU": "", "CPU": "", "memory": "give each less with --memory-fraction or --pool, "}


@dataclass(frozen=True, slots=True)
class Need:
    """Of one replica. Ray never divides a bundle among machines."""

    bundles: tuple[Resources, ...]
    own: Resources
    """Of the first bundle, what the replica's own processes take. The rest is for ranks that are actors."""

    @property
    def has_actors(self) -> bool:
        return self.bundles != (self.own,)


def needs(plan: Plan, options: RunOptions) -> Need:
    """Of one replica: a GPU for each of its ranks, or else its part of main memory."""
    ranks = needs_of_ranks(plan, options)
    if options.ranks.launch == RAY and len(ranks) > 1:
        return Need(bundles_of(plan, options), ranks[0])
    own = {**sum_of(ranks), "CPU": 1}
    return Need((own,), own)


def requests_at_once(plan: Plan, request_tokens: int) -> int:
    """Of this length, that one replica runs."""
    length = min(request_tokens, plan.max_length)
    return max(1, min(plan.max_requests, bound.concurrency(plan, length)))


def places(machines: Sequence[Resources], bundles: Sequence[Resources], most: int) -> int:
    """How many replicas the machines hold together, as far as `most`: each bundle goes to the first with room."""
    free = [dict(one) for one in machines]
    for count in range(most):
        for bundle in bundles:
            room = (one for one in free if all(one.get(name, 0) >= amount for name, amount in bundle.items()))
            if (chosen := next(room, None)) is None:
                return count
            chosen.update({name: chosen[name] - amount for name, amount in bundle.items() if name in chosen})
    return most


def require_places(machines: Sequence[Resources], bundles: Sequence[Resources], replicas: int) -> None:
    """Raises before anything is started if the fewest replicas cannot run at once. `bundles`: of one."""
    found, need = places(machines, bundles, replicas), sum_of(bundles)
    if found >= replicas:
        return
    short = min(need, key=lambda name: sum(one.get(name, 0) // bundles[0][name] for one in machines))
    here = sum(one.get(short, 0) for one in machines)
    fewer = f"lower --replicas to {found}" if found else "use another machine"
    one, all_of_them = amount_of(short, need[short]), amount_of(short, replicas * need[short])
    asked = f"{replicas} replicas need {all_of_them}, {one} each," if replicas > 1 else f"the replica needs {one},"
    where = f"{len(machines)} machine{'s' * (len(machines) != 1)}"
    raise PlanError(f"{asked} and Ray has {amount_of(short, here)} on {where}: {FIXES[short]}{fewer} or add machines")
