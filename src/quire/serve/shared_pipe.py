"""The engine's end of the pipe to the HTTP process, for several threads."""

from __future__ import annotations

import contextlib
import os
import threading
from multiprocessing.connection import Connection

from quire.serve.messages import RankLost

RANK_LOST = 76
"""Exit code after the loss of a rank."""


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
