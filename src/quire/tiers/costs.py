"""Measures what it costs to load the KV of a preempted request, and to compute it again.

load            bytes ÷ bandwidth of the copies from host memory
compute again   steps × overhead + tokens × seconds a token, fitted to the steps that were run
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from quire.core.units import ceil_div
from quire.tiers.status import TierStatus

HOST_FAILURES = ("host_full", "load_without_room", "not_written_behind")
RATE_DECAY, STEP_DECAY = 0.9, 0.99
"""Weight of a measurement relative to the next one: machines and traffic change."""


class RateMeter:
    """Amount per second; the latest measurements count most."""

    def __init__(self) -> None:
        self._amount = self._seconds = 0.0

    def note(self, amount: float, seconds: float) -> None:
        self._amount = RATE_DECAY * self._amount + amount
        self._seconds = RATE_DECAY * self._seconds + seconds

    def seconds_for(self, amount: float) -> float | None:
        return amount * self._seconds / self._amount if self._amount else None


@dataclass(slots=True)
class Totals:
    """Everything that was transferred in one direction."""

    count: int = 0
    bytes: int = 0
    seconds: float = 0.0

    def note(self, size_bytes: int, seconds: float, count: int = 1) -> None:
        self.count += count
        self.bytes += size_bytes
        self.seconds += seconds


def host_status(counted: Mapping[str, int], meters: Mapping[str, Totals], in_flight: Mapping[str, int]) -> TierStatus:
    """Status of host memory; its counters count records."""
    return TierStatus(
        "host",
        True,
        True,
        counted["host_hits"],
        counted["host_misses"],
        bytes={way: meter.bytes for way, meter in meters.items()},
        transfers={way: meter.count for way, meter in meters.items()},
        seconds={way: meter.seconds for way, meter in meters.items()},
        in_flight=in_flight,
        failures={what: counted[what] for what in HOST_FAILURES},
    )


class StepMeter:
    """Fits seconds = overhead + tokens × each to the latest steps, by least squares."""

    def __init__(self) -> None:
        self._count = self._tokens = self._seconds = self._squares = self._products = 0.0

    def note(self, tokens: int, seconds: float) -> None:
        self._count = STEP_DECAY * self._count + 1
        self._tokens = STEP_DECAY * self._tokens + tokens
        self._seconds = STEP_DECAY * self._seconds + seconds
        self._squares = STEP_DECAY * self._squares + tokens * tokens
        self._products = STEP_DECAY * self._products + tokens * seconds

    def seconds_for(self, tokens: int, step_tokens: int) -> float | None:
        """Seconds to compute this many tokens, at most `step_tokens` of them in a step."""
        if not self._tokens:
            return None
        mean_tokens, mean_seconds = self._tokens / self._count, self._seconds / self._count
        variance = self._squares / self._count - mean_tokens * mean_tokens
        covariance = self._products / self._count - mean_tokens * mean_seconds
        if variance <= 0 or covariance <= 0:  # all steps are alike: overhead and tokens cannot be separated
            return tokens * mean_seconds / mean_tokens
        each = covariance / variance
        overhead = max(0.0, mean_seconds - each * mean_tokens)
        return ceil_div(tokens, step_tokens) * overhead + tokens * each
