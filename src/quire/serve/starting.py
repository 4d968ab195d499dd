"""Starts of the engine's process, and what is known of the one that runs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

from quire.options.child import python
from quire.serve.frames import FramePipe


@dataclass(slots=True)
class Life:
    """One process of the engine, from start to end."""

    process: subprocess.Popen[bytes]
    pipe: FramePipe
    started_at: float
    is_ready: bool = False
    lost: str = ""
    """The rank that was lost, and how: then its process ends."""


def engine_process(descriptor: int) -> subprocess.Popen[bytes]:
    """With the pipe at this descriptor."""
    command = python("-m", "quire.serve.engine_process", str(descriptor))
    return subprocess.Popen(command, pass_fds=[descriptor], stdin=subprocess.DEVNULL, stdout=sys.stderr)
