"""How many connections fit below the process's limit of open files.

Every connection is an open file. If connections could use all of them, a dead engine could not be started again: its
pipe needs some too.
"""

from __future__ import annotations

import contextlib
import resource

from quire.core.errors import InputError

RESERVED = 128
"""Files for everything else: pipes of the engine and of grammars, the listener, logs, models that are read."""


def raise_limit() -> int:
    """Raises the limit to what the system allows this process, and returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # a container may allow less than it says
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return soft


def fitting_connections(asked: int, limit: int) -> int:
    """At most `asked`. Raises if there is no room for a single one."""
    if limit == resource.RLIM_INFINITY:
        return asked
    if limit <= RESERVED:
        raise InputError(f"this process may open {limit:,} files, and needs {RESERVED + 1:,}: raise it with ulimit -n")
    return min(asked, limit - RESERVED)
