"""Wakes a thread that waits for several things at once: `notify` makes `fileno` readable.

It lasts as long as the process: threads may still notify when everything else has ended.
"""

from __future__ import annotations

import contextlib
import os


class Wakeup:
    """A pipe within the process, for `select` and similar calls."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        for end in (self._reader, self._writer):
            os.set_blocking(end, False)

    def fileno(self) -> int:
        return self._reader

    def notify(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the pipe is full of notices that were not read yet
            os.write(self._writer, b"!")

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._reader, 65536)
