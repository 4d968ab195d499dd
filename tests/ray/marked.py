"""Processes of a test, found by a mark in their environment, which those that they start inherit."""

from __future__ import annotations

import os
import signal
import uuid
from pathlib import Path

MARK = "STARTED_BY_A_TEST"


class Marked:
    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex

    def environment(self, more: dict[str, str] | None = None) -> dict[str, str]:
        """This process's, without options for Quire and Ray."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("QUIRE_", "RAY_"))}
        cache = {name: value for name, value in os.environ.items() if name == "QUIRE_CACHE"}
        return {**kept, **cache, "OMP_NUM_THREADS": "1", **(more or {}), MARK: self.mark}

    def processes(self, words: str = "") -> list[int]:
        """All that live, and whose command line has these words."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                is_ours = f"{MARK}={self.mark}".encode() in (folder / "environ").read_bytes()
                if is_ours and words in (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode():
                    found.append(int(folder.name))
            except OSError:
                continue  # it has ended
        return found

    def kill_all(self) -> None:
        for one in self.processes():
            os.kill(one, signal.SIGKILL)
