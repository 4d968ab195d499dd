"""Whether the engine makes progress, judged only from its ticks, so that a frozen engine cannot claim to be healthy.

A tick counts if a step has settled since the previous one, or if there is nothing to do. However many requests wait and
however long, an engine that settles steps makes progress.

| engine | progress |
| --- | --- |
| no process: it died, or cannot be started | no |
| the first process loads | yes: it either gets ready, or the server ends |
| a later process loads | until `step_seconds` after the last progress of the one that died |
| ready | if a step settled within `step_seconds`, or there is nothing to do |
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
        self._has_engine = False

    def engine_starts(self) -> None:
        """There is a process, which loads its weights."""
        self._has_engine = True

    def engine_is_gone(self) -> None:
        self._has_engine = False

    def note(self, steps: int, is_idle: bool) -> None:
        if is_idle or steps != self._steps:
            self._steps, self._at = steps, self._clock()

    def reset(self) -> None:
        """A new engine is ready."""
        self._has_engine = True
        self._steps, self._at = 0, self._clock()

    def resume(self, steps: int, seconds_since: float | None) -> None:
        """Goes on from what another process knows."""
        self._steps, self._at = steps, None if seconds_since is None else self._clock() - seconds_since

    @property
    def steps(self) -> int:
        """Settled, as of the last progress."""
        return self._steps

    @property
    def seconds_since(self) -> float | None:
        """Since the last progress; None before the first."""
        return None if self._at is None else self._clock() - self._at

    def is_progressing(self) -> bool:
        since = self.seconds_since
        return self._has_engine and (since is None or since <= self.step_seconds)
