"""`quire deploy` as a process of its own, with all that it starts."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

WAIT_SECONDS = 300
POLL_SECONDS = 0.1
MARK = "DEPLOYMENT_OF_A_TEST"
"""In the environment of every process that a deployment starts."""


class Deployed:
    def __init__(self, *arguments: str) -> None:
        self.mark, self.lines, self.address = uuid.uuid4().hex, list[str](), ""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("QUIRE_", "RAY_"))}
        cache = {name: value for name, value in os.environ.items() if name == "QUIRE_CACHE"}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "quire.cli.main", "deploy", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**kept, **cache, MARK: self.mark, "OMP_NUM_THREADS": "1"},
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

    def processes(self, words: str = "") -> list[int]:
        """All that were started for it and live, itself included, whose command line has these words."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                is_ours = f"{MARK}={self.mark}".encode() in (folder / "environ").read_bytes()
                if is_ours and words in (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode():
                    found.append(int(folder.name))
            except OSError:
                continue  # it has ended
        return found

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

    def kill_all(self) -> None:
        for one in self.processes():
            os.kill(one, signal.SIGKILL)


@contextmanager
def deployed(*arguments: str) -> Iterator[Deployed]:
    running = Deployed(*arguments)
    try:
        running.until("it serves", lambda: bool(running.address))
        yield running
        running.end()
    finally:
        running.kill_all()
