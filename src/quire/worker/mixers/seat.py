"""Where a model's layers find what they read and write in the step that runs."""

from __future__ import annotations

from dataclasses import dataclass

from quire.worker.arena import Arena
from quire.worker.backends import Backend
from quire.worker.batch import Batch


@dataclass(slots=True, eq=False)
class Seat:
    arena: Arena
    backends: tuple[Backend, ...]
    """By kind."""
    batch: Batch | None = None

    def running(self) -> Batch:
        assert self.batch is not None, "a step is running"
        return self.batch
