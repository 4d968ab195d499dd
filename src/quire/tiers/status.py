"""What a tier reports about itself, for metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TierStatus:
    """State and counters of a tier, for metrics: plain values that can be sent to another process."""

    name: str
    can_read: bool
    can_write: bool
    hits: int
    """Records that were read here."""
    misses: int
    """Records that were looked for here and not found."""
    bytes: Mapping[str, int]
    """By direction: read, write."""
    transfers: Mapping[str, int]
    """By direction: records transferred, and in `seconds` the time that all of them took together."""
    seconds: Mapping[str, float]
    in_flight: Mapping[str, int]
    failures: Mapping[str, int]
    """By operation."""
