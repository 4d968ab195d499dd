"""Copies between pages and host memory that come as late as they may: when somebody waits, or must not go on before."""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random

import torch

from quire.movers.host import HostMemory
from quire.worker.pages.copies import Directly, Ints, Pieces, Wait
from quire.worker.pages.fences import Fences, Way
from quire.worker.pages.staging import Staging
from tiered import TieredService


class Pending:
    """A copy, and all of its way before it."""

    def __init__(self, action: Callable[[], None], before: Pending | None) -> None:
        self._action, self._before = action, before
        self._is_done = False

    def query(self) -> bool:
        return self._is_done

    def run(self) -> None:
        if not self._is_done:
            if self._before is not None:
                self._before.run()
            self._action()
            self._is_done, self._before = True, None


class LateCopies:
    """What a GPU's copies may do at worst, on a CPU. Whoever waits finds the gate open after a random while."""

    def __init__(self, arena: torch.Tensor, host: torch.Tensor, sheet_bytes: int, seed: int = 0) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.forced = 0
        """Copies that were done because a step needed their pages."""
        self._now = Directly(arena, host)
        self._fences: Fences[Pending] = Fences(arena.numel(), sheet_bytes)
        self._last: dict[Way, Pending | None] = dict.fromkeys(Way)
        self._lock = threading.RLock()
        self._random = Random(seed)

    @property
    def is_busy(self) -> bool:
        with self._lock:
            return self._fences.is_busy

    def out(self, pieces: Pieces) -> Wait:
        return self._later(Way.OUT, Way.BACK, pieces, lambda: self._now.out(pieces))

    def back(self, pieces: Pieces) -> Wait:
        return self._later(Way.BACK, Way.OUT, pieces, lambda: self._now.back(pieces))

    def before(self, written: Ints, read: Ints) -> None:
        fences = self._fences
        with self._lock:
            for end in (*fences.ends(Way.OUT, written), *fences.ends(Way.BACK, written), *fences.ends(Way.BACK, read)):
                self.forced += not end.query()
                end.run()

    def _later(self, way: Way, other: Way, pieces: Pieces, action: Callable[[], None]) -> Wait:
        with self._lock:
            for end in self._fences.ends(other, pieces.arena):
                end.run()
            copy = self._last[way] = Pending(action, self._last[way])
            self._fences.add(way, pieces.arena, copy)
            seconds = self._random.choice((0, 0.001, 0.005, 0.02))

        def wait() -> float:
            threading.Event().wait(seconds)
            self.gate.wait()
            with self._lock:
                copy.run()
            return 0.001

        return wait


def make_late(service: TieredService, seed: int = 0) -> LateCopies:
    """From now on this service's copies go on beside its steps."""
    runner, stack = service.runner, service.stack
    assert isinstance(stack.held._memory, HostMemory)
    copies = LateCopies(runner.arena.bytes, stack.held._memory.tensor, runner.arena.stage.sheet_bytes, seed)
    stack.loads._lands_later = True
    runner.staging = Staging(runner.plan, copies, stack)
    return copies
