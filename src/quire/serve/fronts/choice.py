"""How many processes speak HTTP."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path

from quire.serve.settings import ServeSettings, most_http_processes

LEAST_CORES = 8
"""With fewer cores, one process: the engine and the clients need the others."""
CORES_PER_PROCESS = 4
MOST = 4
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def http_processes(settings: ServeSettings, device: str) -> int:
    """As many as were asked for. By default several only where the engine computes on a GPU: on a CPU it uses all cores
    itself, and one process keeps up with it."""
    if settings.http_processes is not None:
        return settings.http_processes
    cores = usable_cores()
    if device == "cpu" or cores < LEAST_CORES:
        return 1
    return max(1, min(cores // CORES_PER_PROCESS, MOST, most_http_processes(settings)))


def usable_cores(quota_file: Path = CPU_QUOTA) -> int:
    """Those that this process may run on, within the time that a container allows."""
    cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):  # there is no such limit
        quota, period = map(int, quota_file.read_text().split())
        cores = min(cores, math.ceil(quota / period))
    return cores
