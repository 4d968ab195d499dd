"""Compiles the C files next to this one. Run when Quire is installed, or by hand: python -m quire.native.compile"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
LIBRARY = FOLDER / "quire-native.so"
FLAGS = ("-std=gnu11", "-O3", "-fPIC", "-shared", "-pthread", "-Wno-psabi")
COMPILERS = ("cc", "gcc", "clang")


def compiler() -> list[str] | None:
    """The command that `CC` names, or one of the usual names."""
    named = shlex.split(os.environ.get("CC", ""))
    if named:
        return named
    found = next((name for name in COMPILERS if shutil.which(name)), None)
    return None if found is None else [found]


def build(library: Path = LIBRARY) -> str | None:
    """Makes the library; returns why it could not. A library that is there is replaced at once, or not at all."""
    command = compiler()
    if command is None:
        return "there is no C compiler"
    sources = sorted(map(str, FOLDER.glob("*.c")))
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        made = Path(scratch) / library.name
        command = [*command, *FLAGS, *sources, "-o", str(made), "-lm"]
        try:
            ran = subprocess.run(command, capture_output=True, text=True)
        except OSError as error:
            return f"{command[0]} does not run: {error}"
        if ran.returncode:
            return f"{command[0]} failed:\n{ran.stderr[-2000:]}"
        made.replace(library)
    return None


def main() -> int:
    why_not = build()
    print(why_not or f"made {LIBRARY}")
    return int(why_not is not None)


if __name__ == "__main__":
    sys.exit(main())
