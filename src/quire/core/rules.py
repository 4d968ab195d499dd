"""How requests are treated: what an operator may choose about order, queue and waiting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from quire.core.errors import InputError
from quire.core.units import MIB

LOAD_SECONDS, SLOWEST_LOAD_BYTES = 5.0, 256 * MIB
"""The bytes a second: a tier that brings less is not worth the wait."""


class Policy(str, Enum):
    """In which order requests are let in. The elder goes before everyone under each of them."""

    FIRST_COME = "first-come"
    PRIORITY = "priority"
    FAIR = "fair"
    """Tenants take turns by the tokens they were served, divided by their weights."""


@dataclass(frozen=True, slots=True)
class Rules:
    policy: Policy = Policy.PRIORITY
    weights: Mapping[str, float] = field(default_factory=dict)
    """By tenant, for fair shares; 1 for whoever is not named."""
    queue_bound: int = 4096
    load_seconds: float = LOAD_SECONDS
    """A load from a tier that has not answered by then is given up, and its tokens are computed: so many seconds, and
    one more for each `SLOWEST_LOAD_BYTES`."""

    def __post_init__(self) -> None:
        for tenant, weight in self.weights.items():
            if not weight > 0:
                raise InputError(f"tenant {tenant} has a weight of {weight}: give a number above 0")
        if self.queue_bound < 1:
            raise InputError(f"a queue of {self.queue_bound} takes nobody: give at least 1")
        if not self.load_seconds > 0:
            raise InputError(f"a load may take {self.load_seconds} seconds: give a number above 0")

    def seconds_to_load(self, size_bytes: int) -> float:
        """How long a load of so many bytes may take."""
        return self.load_seconds + size_bytes // SLOWEST_LOAD_BYTES
