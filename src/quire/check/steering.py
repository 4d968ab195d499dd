"""Threads that run one at a time, and only when the checker resumes them: every interleaving follows from a seed.

    checker ──resume──▶ action … pause(3) ──▶ checker … three turns later ──resume──▶ action … ends ──▶ checker

An action gives control back where it pauses, which stands for a transfer that takes its time, and when it ends.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from quire.tiers.threads import Action, Threads


class _Task:
    """An action in a thread of its own, which waits for its turn."""

    def __init__(self, action: Action, pool: SteeredThreads) -> None:
        self.action, self.pool, self.due = action, pool, 0.0
        self.turn = threading.Semaphore(0)
        self.is_over = False


class Steering:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pools: list[SteeredThreads] = []
        self._tasks: list[_Task] = []
        self._running: _Task | None = None
        self._given_back = threading.Semaphore(0)
        self._is_ending = False
        self._failures: list[BaseException] = []

    def threads(self, count: int, name: str) -> Threads:
        """For a stack that is to be steered."""
        self._pools.append(SteeredThreads(count, name))
        return self._pools[-1]

    @property
    def is_idle(self) -> bool:
        return not self._tasks and not any(pool.waiting for pool in self._pools)

    @property
    def is_in_task(self) -> bool:
        """Whether the caller runs in one of these threads."""
        return self._running is not None

    def pause(self, seconds: float) -> None:
        """Within an action: others go on, for at least so long. Nothing elsewhere."""
        task = self._running
        if task is None or self._is_ending:
            return
        task.due = self._clock() + seconds
        self._running = None
        self._given_back.release()
        task.turn.acquire()

    def run(self) -> None:
        """Everything that is due: actions that paused long enough, and those that a thread is free for."""
        while due := self._due():
            for task in due:
                self._resume(task)
        if self._failures:
            raise self._failures.pop()

    def finish(self) -> None:
        """Lets every action run to its end."""
        self._is_ending = True
        for task in self._tasks:
            task.due = 0.0
        self.run()

    def _due(self) -> list[_Task]:
        for pool in self._pools:
            while pool.waiting and pool.busy < pool.count:
                self._begin(_Task(pool.waiting.popleft(), pool))
        return [task for task in self._tasks if task.due <= self._clock()]

    def _begin(self, task: _Task) -> None:
        task.pool.busy += 1
        self._tasks.append(task)
        threading.Thread(target=self._work, args=(task,), name=task.pool.name, daemon=True).start()

    def _resume(self, task: _Task) -> None:
        self._running = task
        task.turn.release()
        self._given_back.acquire()
        if task.is_over:
            self._tasks.remove(task)

    def _work(self, task: _Task) -> None:
        task.turn.acquire()
        try:
            task.action()
        except BaseException as error:  # a thread of a stack survives everything: this is a finding
            self._failures.append(error)
        task.is_over, self._running = True, None
        task.pool.busy -= 1
        task.pool.done += 1
        self._given_back.release()


class SteeredThreads(Threads):
    """Actions wait here until the steering begins them."""

    def __init__(self, count: int, name: str) -> None:
        super().__init__(count, name)
        self.waiting: deque[Action] = deque()
        self.busy = 0

    def submit(self, action: Action) -> None:
        self.waiting.append(action)
