"""Bisection, for all packages."""

from __future__ import annotations

from collections.abc import Callable


def greatest(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The greatest number in [low, high] that holds, or `low` if none above it does. If n fails, all above n fail."""
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low
