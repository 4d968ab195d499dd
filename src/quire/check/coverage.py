"""What was exercised, and how often: for every kind under every policy, each fault; for every kind, each mechanism."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from enum import Enum

from quire.check.systems import System
from quire.core.rules import Policy
from quire.kinds import KINDS, Keeps


class Fault(str, Enum):
    """What the world does to the engine."""

    ABORT = "abort"
    DEADLINE = "deadline"
    PIN = "pin"
    QUEUE_FULL = "queue full"
    DROP = "cache dropped"
    STEP_FAILED = "step failed"
    LOAD_DONE = "load done"
    LOAD_FAILED = "load failed"
    LOAD_LATE = "load late"
    LOAD_LOST = "load lost"
    LOAD_LESS = "load has less"


class Mechanism(str, Enum):
    """What the engine does about memory; the last ones count steps of systems that have it."""

    HIT = "hit"
    PREEMPTION = "preemption"
    RETURN = "row returned"
    EVICTION = "eviction"
    COMPACTION = "compaction"
    CACHE_COMPACTED = "compaction of cached pages"
    CHECKPOINT = "checkpoint"
    STORE = "store"
    NEVER_FITS = "never fits"
    ACCEPTED = "draft accepted"
    REJECTED = "draft rejected"
    LOOKAHEAD = "lookahead"
    OVERLAP = "overlap"
    STAGES = "stages"
    GROUPS = "groups"
    RESERVED = "reserved pages"
    LARGE = "large system"
    LEASE = "lease of cached tokens"
    RETAINED = "lease with a request"
    WARM = "prompt announced"
    TURN = "turn ended"
    WARMED = "warm work"
    BRANCH = "branch"
    FORK = "fork at a running request's end"
    TIER_LEASE = "lease in a tier"
    QUOTA = "lease over a quota"


STEPS_PER_FLOOR = 20_000
"""Everything must have happened at least once in so many steps; shorter runs have no floor."""
OF_REUSE = (
    Mechanism.HIT,
    Mechanism.EVICTION,
    Mechanism.CACHE_COMPACTED,
    Mechanism.CHECKPOINT,
    Mechanism.STORE,
    Mechanism.LEASE,
    Mechanism.RETAINED,
    Mechanism.WARM,
    Mechanism.TURN,
    Mechanism.WARMED,
    Mechanism.FORK,
    Mechanism.TIER_LEASE,
    Mechanism.QUOTA,
)
LOADS = (Fault.LOAD_DONE, Fault.LOAD_FAILED, Fault.LOAD_LATE, Fault.LOAD_LOST, Fault.LOAD_LESS)


def is_possible(kind: str, what: Fault | Mechanism) -> bool:
    """Whether it can happen at all to a system that has this kind."""
    if what is Mechanism.CHECKPOINT:
        return KINDS[kind].keeps is Keeps.STATE
    return KINDS[kind].is_shareable or what not in (*OF_REUSE, *LOADS, Fault.DROP)


class Coverage:
    def __init__(self) -> None:
        self.steps = 0
        self.faults: Counter[tuple[str, Policy, Fault]] = Counter()
        self.mechanisms: Counter[tuple[str, Mechanism]] = Counter()

    def fault(self, kinds: tuple[str, ...], policy: Policy, fault: Fault) -> None:
        self.faults.update((kind, policy, fault) for kind in kinds)

    def mechanism(self, kinds: tuple[str, ...], mechanism: Mechanism) -> None:
        self.mechanisms.update((kind, mechanism) for kind in kinds)

    def rows(self) -> Iterator[tuple[str, tuple[int | None, ...]]]:
        """Lines of a table with a column for each kind; None: impossible."""
        for policy in Policy:
            for fault in Fault:
                counts = (self.faults[kind, policy, fault] if is_possible(kind, fault) else None for kind in KINDS)
                yield f"{policy.value}, {fault.value}", tuple(counts)
        for mechanism in Mechanism:
            counts = (self.mechanisms[kind, mechanism] if is_possible(kind, mechanism) else None for kind in KINDS)
            yield mechanism.value, tuple(counts)

    def not_exercised(self) -> list[str]:
        """What happened less often than a run of this length must see; nothing for short runs."""
        floor = self.steps // STEPS_PER_FLOOR
        return [
            f"{name} with {kind} ({count} of {floor})"
            for name, counts in self.rows()
            for kind, count in zip(KINDS, counts, strict=True)
            if count is not None and count < floor
        ]

    def count_step(self, system: System) -> None:
        self.steps += 1
        has = {
            Mechanism.LOOKAHEAD: system.plan.lookahead,
            Mechanism.OVERLAP: system.overlap > 1,
            Mechanism.STAGES: len(system.plan.stages) > 1,
            Mechanism.GROUPS: system.has_groups,
            Mechanism.RESERVED: system.plan.reserved_pages,
            Mechanism.LARGE: system.is_large,
        }
        for mechanism in (one for one, present in has.items() if present):
            self.mechanism(system.kinds, mechanism)
