"""How long each phase of a start takes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

SHORTEST_SECONDS = 0.05
"""Shorter phases are not reported."""


class Phases:
    """Seconds by phase, in the order in which they began."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin

    def line(self) -> str:
        """`start: 3.2 s (load 2.9 s, warm-up 0.2 s)`."""
        parts = [f"{name} {took:.1f} s" for name, took in self.seconds.items() if took >= SHORTEST_SECONDS]
        details = f" ({', '.join(parts)})" if parts else ""
        return f"start: {sum(self.seconds.values()):.1f} s{details}"
