"""The engine's end of the pipe to the HTTP process, for several threads."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection

from quire.serve.messages import RankLost

RANK_LOST = 76
"""Exit code after the loss of a rank."""


LOOK_SECONDS = 0.5


@contextlib.contextmanager
def ending_with_parent(connection: Connection) -> Iterator[None]:
    """While this process starts it reads no commands. If the HTTP process closes the pipe meanwhile, or is gone, this
    one ends: it may be waiting for other ranks, or for a place on a cluster, for minutes."""
    is_over = threading.Event()

    def watch() -> None:
        poller = select.poll()
        poller.register(connection.fileno(), 0)  # the other end's closing is always reported
        while not is_over.is_set():
            if poller.poll(LOOK_SECONDS * 1000) and not is_over.is_set():
                os._exit(1)

    threading.Thread(target=watch, name="start", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


class SharedPipe:
    """The pipe to the HTTP process: the loop's, and of the thread that notices the loss of a rank."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._sending = connection, threading.Lock()
        self.fileno, self.poll, self.recv = connection.fileno, connection.poll, connection.recv

    def send(self, message: object) -> None:
        with self._sending:
            self._connection.send(message)

    def end(self, why: str) -> None:
        """A rank was lost: the process ends at once, whatever the loop waits for."""
        with contextlib.suppress(OSError):
            self.send(RankLost(why))
        os._exit(RANK_LOST)
