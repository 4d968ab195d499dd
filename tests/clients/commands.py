"""Clients that are commands of the environment which runs the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from asked import WAIT_SECONDS


def command(name: str) -> str:
    """The path of an installed client; without it the test is skipped, and the reason is printed."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        pytest.skip(f"the command {name} is not installed")
    return str(path)


def output_of(*arguments: str, folder: Path, **variables: str) -> str:
    """What a command prints, run in this folder; it must succeed."""
    done = subprocess.run(
        arguments, cwd=folder, env=os.environ | variables, capture_output=True, text=True, timeout=WAIT_SECONDS
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout
