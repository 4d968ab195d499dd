"""Ends of child processes."""

from __future__ import annotations

import subprocess

REAP_SECONDS = 2.0


def end_at_once(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def reap(process: subprocess.Popen[bytes]) -> int:
    """The pipe closed, so the process has ended or is about to; one that does not end is killed."""
    try:
        return process.wait(REAP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
