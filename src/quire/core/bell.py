"""Wakes a thread that waits for several things at once: whoever rings makes `fileno` readable. It lasts as long as the
process: threads may still ring when everything else has ended."""

from __future__ import annotations

import contextlib
import os


class Bell:
    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        for end in (self._reader, self._writer):
            os.set_blocking(end, False)

    def fileno(self) -> int:
        return self._reader

    def ring(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it rings already
            os.write(self._writer, b"!")

    def hush(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._reader, 65536)
