"""How this program starts Python again."""

from __future__ import annotations

import sys


def python(*arguments: str) -> list[str]:
    """The command for a child process. -P: it imports nothing from the working directory, where `python -m` and `-c`
    look first. A file there that is called numpy.py would be run instead of numpy."""
    return [sys.executable, "-P", *arguments]
