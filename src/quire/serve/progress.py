"""Whether the engine makes progress, judged only from its ticks, so that a frozen engine cannot claim to be healthy.

A tick counts if a step has settled since the previous one, or if there is nothing to do. However many requests wait and
however long, an engine that settles steps makes progress.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class Progress:
    def __init__(self, step_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.step_seconds = step_seconds
        """A step that takes longer counts as no progress."""
        self._clock = clock
        self._steps = 0
        self._at: float | None = None

    def note(self, steps: int, is_idle: bool) -> None:
        if is_idle or steps != self._steps:
            self._steps, self._at = steps, self._clock()

    def reset(self) -> None:
        """A new engine is ready."""
        self._steps, self._at = 0, self._clock()

    @property
    def seconds_since(self) -> float | None:
        """Since the last progress; None before the first."""
        return None if self._at is None else self._clock() - self._at

    def is_progressing(self) -> bool:
        since = self.seconds_since
        return since is not None and since <= self.step_seconds
