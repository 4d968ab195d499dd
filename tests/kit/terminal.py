"""A command in a terminal of its own, and what it drew there."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

WAIT_SECONDS = 120.0


class Terminal:
    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process, self._descriptor = process, descriptor
        self.drawn = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        """Until the other side is closed, which is an error of this one."""
        try:
            while piece := os.read(self._descriptor, 65536):
                self.drawn += piece.decode(errors="replace")
        except OSError:
            return

    def until(self, text: str, since: int = 0) -> int:
        """Waits until it is drawn after this place; where drawing is now."""
        end = time.monotonic() + WAIT_SECONDS
        while text not in self.drawn[since:]:
            assert self.process.poll() is None, self.drawn[-2000:]
            assert time.monotonic() < end, f"{text!r} is not in {self.drawn[-2000:]!r}"
            time.sleep(0.02)
        return len(self.drawn)

    def interrupt(self) -> int:
        """As Ctrl-C does; the exit code."""
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(WAIT_SECONDS)
        self._reader.join(WAIT_SECONDS)
        return code


@contextmanager
def terminal(*arguments: str, columns: int = 120, lines: int = 40) -> Iterator[Terminal]:
    """`quire` with these arguments."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    command = [sys.executable, "-m", "quire.cli.main", *arguments]
    size = {"COLUMNS": str(columns), "LINES": str(lines)}
    environment = {**os.environ, **size, "TERM": "xterm-256color"}
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # one that is ignored stays so in a child
    try:
        process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    finally:
        signal.signal(signal.SIGINT, before)
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(ours)
