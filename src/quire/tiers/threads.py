"""Threads of a stack: they run actions in order, and end with the process, whatever they wait for.

Closing them waits as long as actions complete. A thread that never returns is abandoned, with a line in the log.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence

PATIENCE_SECONDS = 10.0
"""If no action completes for this long, the remaining ones are given up."""
POLL_SECONDS = 0.1
Action = Callable[[], object]
_LOG = logging.getLogger("quire.tiers")


class Threads:
    """Up to `count` daemon threads that share one queue of actions; each is started when it is first needed."""

    def __init__(self, count: int, name: str) -> None:
        self.count, self.name = count, name
        self._actions: queue.SimpleQueue[Action | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self.done = 0
        """Number of completed actions; approximate with several threads."""
        self._threads: list[threading.Thread] = []
        """Threads that were started."""

    def submit(self, action: Action) -> None:
        with self._lock:
            if len(self._threads) < self.count:
                self._threads.append(threading.Thread(target=self._run, name=self.name, daemon=True))
                self._threads[-1].start()
        self._actions.put(action)

    def flush(self) -> None:
        """Waits until everything submitted by now is done; for a single thread."""
        assert self.count == 1, "several threads have no common order"
        reached = threading.Event()
        self.submit(reached.set)
        reached.wait()

    def alive(self) -> list[threading.Thread]:
        return [thread for thread in self._threads if thread.is_alive()]

    def end(self) -> None:
        """Lets the threads end when all submitted actions are done."""
        for _ in self._threads:
            self._actions.put(None)

    def close(self, patience_seconds: float = PATIENCE_SECONDS) -> None:
        """Ends the threads after all submitted actions are done."""
        close_all([self], patience_seconds)

    def drop(self) -> None:
        """Drops actions that no thread has begun."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._actions.get_nowait()

    def _run(self) -> None:
        while (action := self._actions.get()) is not None:
            try:
                action()
            except Exception:
                _LOG.exception("%s: a transfer failed", self.name)
            self.done += 1


MakeThreads = Callable[[int, str], Threads]
"""Makes threads: how many, and their name."""


def close_all(pools: Sequence[Threads], patience_seconds: float = PATIENCE_SECONDS) -> None:
    """Ends them together, and waits until none is left or no action completes for `patience_seconds`."""
    for pool in pools:
        pool.end()
    done, since = 0, time.monotonic()
    while (alive := [one for pool in pools for one in pool.alive()]) and time.monotonic() - since < patience_seconds:
        alive[0].join(min(POLL_SECONDS, patience_seconds))
        if (now_done := sum(pool.done for pool in pools)) != done:
            done, since = now_done, time.monotonic()
    for pool in pools:
        if lost := len(pool.alive()):
            _LOG.warning("%s: %d of %d threads wait for what never comes", pool.name, lost, pool.count)
