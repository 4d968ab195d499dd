"""Threads that wait for copies beside the steps and tell when they are done: one for each way; those are in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

Then = Callable[[float, Sequence[int], Sequence[int]], None]
"""Is told how many seconds a copy took, which records are stored by it, and which loads have landed."""


class Followers:
    def __init__(self, then: Then) -> None:
        self._then = then
        self._out, self._back = (ThreadPoolExecutor(1, f"quire-{way}") for way in ("out", "back"))

    def follow(self, wait: Callable[[], float], stored: Sequence[int], landed: Sequence[int]) -> None:
        (self._out if stored else self._back).submit(lambda: self._then(wait(), stored, landed))

    def flush(self) -> None:
        """Waits for all that is followed by now."""
        for way in (self._out, self._back):
            way.submit(lambda: None).result()

    def close(self) -> None:
        for way in (self._out, self._back):
            way.shutdown(wait=True)
