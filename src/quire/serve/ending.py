"""Ends of child processes."""

from __future__ import annotations

import asyncio
import signal
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


def ended_how(exit_code: int, requests: int) -> str:
    """In words, for people: an exit code below 0 is a signal."""
    lost = f"; {requests:,} requests ended with it" if requests else ""
    if exit_code >= 0:
        return f"the engine's process ended with exit code {exit_code}{lost}"
    names = {one.value: one.name for one in signal.Signals}
    return f"the engine's process was ended by {names.get(-exit_code, f'signal {-exit_code}')}{lost}"
