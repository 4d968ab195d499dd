"""`quire deploy` as a process of its own, with all that it starts."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx

from marked import Marked

WAIT_SECONDS = 300
POLL_SECONDS = 0.1


class Deployed(Marked):
    def __init__(self, *arguments: str, environment: dict[str, str] | None = None) -> None:
        super().__init__()
        self.lines, self.address = list[str](), ""
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "quire.cli.main", "deploy", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.environment(environment),
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if found := re.match(r"serving .* at (http\S+)/v1", line):
                self.address = found.group(1)

    def until(self, what: str, holds: Callable[[], bool]) -> None:
        end = time.monotonic() + WAIT_SECONDS
        while not holds():
            assert self.process.poll() is None, f"it ended: {''.join(self.lines[-20:])}"
            assert time.monotonic() < end, f"still not so: {what}: {''.join(self.lines[-20:])}"
            time.sleep(POLL_SECONDS)

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.address, timeout=WAIT_SECONDS)

    def replicas(self) -> set[str]:
        """The names of those that answer now."""
        found = httpx.get(f"{self.address}/metrics", timeout=WAIT_SECONDS)
        return set(re.findall(r'^quire_requests_running\{replica="(\w+)"\}', found.text, re.MULTILINE))

    def end(self) -> int:
        """The exit code. Raises if anything is left."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(WAIT_SECONDS)
        end = time.monotonic() + 20
        while left := self.processes():
            assert time.monotonic() < end, f"still there: {left}"
            time.sleep(POLL_SECONDS)
        self._reader.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@contextmanager
def deployed(*arguments: str, environment: dict[str, str] | None = None) -> Iterator[Deployed]:
    running = Deployed(*arguments, environment=environment)
    try:
        running.until("it serves", lambda: bool(running.address))
        yield running
        running.end()
    finally:
        running.kill_all()
