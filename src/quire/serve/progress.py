"""Does the engine get on? Judged from its beats alone, so that a frozen one cannot say that it is well.

A beat counts when a step has settled since the one before, or when there is nothing to do. However many requests wait
and however long they do, an engine that settles steps gets on.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class Progress:
    def __init__(self, step_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.step_seconds = step_seconds
        """A step that takes longer is no progress."""
        self._clock = clock
        self._steps = 0
        self._at: float | None = None

    def heard(self, steps: int, is_idle: bool) -> None:
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
