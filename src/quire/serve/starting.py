"""Starts of the engine's process."""

from __future__ import annotations

import subprocess
import sys

from quire.options.child import python


def engine_process(descriptor: int) -> subprocess.Popen[bytes]:
    """With the pipe at this descriptor."""
    command = python("-m", "quire.serve.engine_process", str(descriptor))
    return subprocess.Popen(command, pass_fds=[descriptor], stdin=subprocess.DEVNULL, stdout=sys.stderr)
