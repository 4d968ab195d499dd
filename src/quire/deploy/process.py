"""The process of one replica: `quire serve` with options that its parent has read, tied to its parent's life.

parent ──stdin: options──▶ quire serve          stdin ends ──▶ the replica ends, whatever became of its parent
       ◀──stdout: address, lines──
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from quire.core.errors import QuireError
from quire.options.child import python

THREADS = "OMP_NUM_THREADS"
POLL_SECONDS = 0.1
HEALTH_SECONDS = 5.0
COLLECT_SECONDS = 2.0
"""For the last lines of a process that has ended; its engine may live a moment longer, and hold the pipe."""
KILL_SECONDS = 20.0
"""For a replica to end after its requests have."""
_LISTENS = re.compile(r"loading .*: (http://\S+)/health/ready")


class ReplicaFailed(QuireError):
    """A replica's process did not start, or has ended."""


class ReplicaProcess:
    def __init__(
        self,
        options: Mapping[str, Any],
        folder: Path,
        threads: str | None = None,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`options`: parsed options of `quire serve`, by name; `folder`: where relative paths begin; `threads`: the
        operator's OMP_NUM_THREADS. Ray sets its own, which would leave a replica one thread. `variables`: more of its
        environment."""
        environment = {name: value for name, value in os.environ.items() if name != THREADS}
        self._process = subprocess.Popen(
            python("-m", "quire.cli.replica"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder if folder.is_dir() else None,
            env={**environment, **({THREADS: threads} if threads else {}), **variables},
            start_new_session=True,  # a signal for the terminal's processes is not for this one
        )
        self.address = ""
        self._errors: deque[str] = deque(maxlen=5)
        pipes = (self._process.stdout, self._read_line), (self._process.stderr, self._read_log)
        self._readers = [threading.Thread(target=_each_line, args=pair, daemon=True) for pair in pipes]
        for reader in self._readers:
            reader.start()
        assert self._process.stdin is not None, "it is a pipe"
        with contextlib.suppress(BrokenPipeError):  # how it has ended is seen later
            pickle.dump(dict(options), self._process.stdin)
            self._process.stdin.flush()

    def wait_ready(self, seconds: float) -> None:
        """Until it takes requests. Raises with its own last line if it ends before."""
        end = time.monotonic() + seconds
        while not (self.address and self._answers("/health/ready")):
            self.require_process()
            if time.monotonic() > end:
                self.kill()
                raise ReplicaFailed(f"the replica was not ready after {seconds:g} s: raise --deploy-seconds")
            time.sleep(POLL_SECONDS)

    def require_live(self) -> None:
        self.require_process()
        if not self._answers("/health/live"):
            raise ReplicaFailed(f"the replica at {self.address} did not answer within {HEALTH_SECONDS:g} s")

    def require_process(self) -> None:
        if not self.is_running:
            self._collect()
            last = next((line for line in reversed(self._errors) if line.startswith("quire: ")), "")
            why = last.removeprefix("quire: ") or f"its process ended with exit code {self._process.returncode}"
            raise ReplicaFailed(why.strip())

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def stop(self, drain_seconds: float) -> None:
        """Requests in progress may end; then the process is gone."""
        if self.is_running:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(drain_seconds + KILL_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._collect()

    def kill(self) -> None:
        self._process.kill()
        self._collect()

    def _collect(self) -> None:
        """Of a process that has ended, what is left: its last lines, and the pipes."""
        self._process.wait()
        for reader in self._readers:
            reader.join(COLLECT_SECONDS)
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    def _answers(self, path: str) -> bool:
        try:
            with urllib.request.urlopen(self.address + path, timeout=HEALTH_SECONDS) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def _read_line(self, line: str) -> None:
        """Of its report, which is that of every replica, only the address."""
        if found := _LISTENS.match(line):
            self.address = found.group(1)

    def _read_log(self, line: str) -> None:
        self._errors.append(line)
        sys.stderr.write(line)
        sys.stderr.flush()


def _each_line(stream: IO[bytes], read: Callable[[str], None]) -> None:
    with stream:
        for line in stream:
            read(line.decode(errors="replace"))
