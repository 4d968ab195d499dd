"""Ends of child processes."""

from __future__ import annotations

import asyncio
import subprocess
import time

REAP_SECONDS = 2.0
LOOK_SECONDS = 0.005


def end_at_once(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


async def reap(process: subprocess.Popen[bytes]) -> int:
    """The pipe closed, so the process has ended or is about to; one that does not end is killed."""
    begun = time.monotonic()
    while (exit_code := process.poll()) is None:
        if time.monotonic() - begun > REAP_SECONDS:
            process.kill()
        await asyncio.sleep(LOOK_SECONDS)
    return exit_code
