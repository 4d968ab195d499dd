"""What the ranks of a model reserve on a Ray cluster.

A bundle for each stage: Ray never divides one among machines, so the ranks that split a stage's layers share a machine,
and stages may have machines of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from quire.core.errors import InputError
from quire.core.units import format_bytes
from quire.options.run import RunOptions
from quire.plan.plan import Plan, RankPlan

GROUP = "QUIRE_RAY_GROUP"
"""Names a placement group that has this process already, in its first bundle: that of a replica of `quire deploy`."""
Resources = Mapping[str, float]
"""Ray's: by CPU, GPU or memory."""


def cpus_of(options: RunOptions) -> int:
    """For one rank. On a CPU it computes with as many threads."""
    return 1 if options.device != "cpu" else options.threads or 1


def needs_of_ranks(plan: Plan, options: RunOptions) -> tuple[Resources, ...]:
    """Of each rank: a GPU, or else its part of main memory."""
    if options.device != "cpu":
        return tuple({"CPU": 1, "GPU": 1} for _ in plan.ranks)
    host = plan.host.budget_bytes // len(plan.ranks) if plan.host else 0
    return tuple({"CPU": cpus_of(options), "memory": host + _bytes_of(rank)} for rank in plan.ranks)


def _bytes_of(rank: RankPlan) -> int:
    return sum(line.bytes for line in rank.ledger)


def bundles_of(plan: Plan, options: RunOptions) -> tuple[Resources, ...]:
    """Of each stage: what its ranks need together."""
    needs, width = needs_of_ranks(plan, options), plan.tensor_parallel
    return tuple(sum_of(needs[first : first + width]) for first in range(0, len(needs), width))


def sum_of(several: Iterable[Resources]) -> Resources:
    total: dict[str, float] = {}
    for one in several:
        for name, amount in one.items():
            total[name] = total.get(name, 0) + amount
    return total


def amount_of(name: str, amount: float) -> str:
    return f"{format_bytes(int(amount))} of memory" if name == "memory" else f"{amount:g} {name}{'s' * (amount != 1)}"


def amounts_of(resources: Resources) -> str:
    """`2 CPUs and 1.00 GiB of memory`."""
    return " and ".join(amount_of(name, resources[name]) for name in ("CPU", "GPU", "memory") if name in resources)


def place_of_gpu(gpu: str, visible: str | None) -> int:
    """Of a GPU, as Ray names it, among those that a process sees."""
    seen = None if visible is None else [one.strip() for one in visible.split(",")]
    if seen is not None and gpu not in seen:
        raise InputError(f"Ray gives GPU {gpu} to rank 0, and CUDA_VISIBLE_DEVICES is {visible}: start without it")
    return int(gpu) if seen is None else seen.index(gpu)
