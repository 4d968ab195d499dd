"""Threads of a stack: they do in order what they are given, and end with the process, whatever they wait for.

Who closes them waits as long as something gets done. What never returns is left behind, with a line in the log.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

PATIENCE_SECONDS = 10.0
"""Nothing was done for so long: nothing will be."""
Action = Callable[[], object]
_LOG = logging.getLogger("quire.tiers")


class Threads:
    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._actions: queue.SimpleQueue[Action | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._done = 0
        self._threads: list[threading.Thread] = []
        """That were needed so far."""

    def submit(self, action: Action) -> None:
        with self._lock:
            if len(self._threads) < self._count:
                self._threads.append(threading.Thread(target=self._run, name=self._name, daemon=True))
                self._threads[-1].start()
        self._actions.put(action)

    def flush(self) -> None:
        """Waits until everything submitted by now is done; for a single thread."""
        assert self._count == 1, "several threads have no common order"
        reached = threading.Event()
        self.submit(reached.set)
        reached.wait()

    def close(self, patience_seconds: float = PATIENCE_SECONDS) -> None:
        """What was submitted is done first."""
        for _ in self._threads:
            self._actions.put(None)
        for thread in self._threads:
            done = -1
            while thread.is_alive() and done != self._done:
                done = self._done
                thread.join(patience_seconds)
        if lost := sum(thread.is_alive() for thread in self._threads):
            _LOG.warning("%s: %d of %d threads wait for what never comes", self._name, lost, self._count)

    def drop(self) -> None:
        """Forgets what no thread has begun."""
        while not self._actions.empty():
            self._actions.get()

    def _run(self) -> None:
        while (action := self._actions.get()) is not None:
            try:
                action()
            except Exception:
                _LOG.exception("%s: a transfer failed", self._name)
            self._done += 1
