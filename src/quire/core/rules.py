"""Scheduling rules that an operator may choose: order, queue length, time limits of loads."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from quire.core.errors import InputError
from quire.core.units import MIB

LOAD_SECONDS, SLOWEST_LOAD_BYTES = 5.0, 256 * MIB
"""The second number is in bytes per second: a load that is slower than that is not worth waiting for."""


class Policy(str, Enum):
    """The order in which requests are admitted. The elder goes first under each of them."""

    FIRST_COME = "first-come"
    PRIORITY = "priority"
    FAIR = "fair"
    """Tenants take turns by tokens served divided by weight; within a tenant, requests are ordered by priority."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What an operator chooses about the order of requests, the queue and the time that loads may take."""

    policy: Policy = Policy.PRIORITY
    queue_bound: int = 4096
    load_seconds: float = LOAD_SECONDS
    """Time limit of a load from a tier, plus one second for each `SLOWEST_LOAD_BYTES`. After that the load is given up
    and its tokens are computed."""

    def __post_init__(self) -> None:
        if self.queue_bound < 1:
            raise InputError(f"a queue of {self.queue_bound} takes nobody: give at least 1")
        if not self.load_seconds > 0:
            raise InputError(f"a load may take {self.load_seconds} seconds: give a number above 0")

    def seconds_to_load(self, size_bytes: int) -> float:
        """How long a load of `size_bytes` may take."""
        return self.load_seconds + size_bytes // SLOWEST_LOAD_BYTES
