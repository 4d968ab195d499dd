"""The Ray cluster that several tests of this folder share, as they would one that others operate."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from marked import Marked

WAIT_SECONDS = 120


class Head(Marked):
    def __init__(self) -> None:
        super().__init__()
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid.uuid4().hex, "RAY_USAGE_STATS_ENABLED": "0"}
        command = [sys.executable, "-P", str(Path(__file__).with_name("head.py"))]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self.environment(token)
        )
        self.address = self._line().strip()
        self.variables = {"RAY_ADDRESS": self.address, **token}
        """For its drivers."""

    def groups(self) -> list[Any]:
        """The bundles of each placement group."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found: list[Any] = json.loads(self._line())
        return found

    def ranks(self) -> list[int]:
        """The processes of ranks."""
        return self.processes("ray::RankActor")

    def until(self, what: str, holds: Callable[[], bool]) -> None:
        end = time.monotonic() + WAIT_SECONDS
        while not holds():
            assert time.monotonic() < end, f"still not so: {what}"
            time.sleep(0.1)

    def until_free(self) -> None:
        """Nothing of an engine is left."""
        self.until("no rank is left", lambda: not self.ranks())
        self.until("no placement group is left", lambda: not self.groups())

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.wait(WAIT_SECONDS)


@contextmanager
def shared_head() -> Iterator[Head]:
    head = Head()
    try:
        yield head
        head.close()
    finally:
        head.kill_all()
