"""Fetches the default model into the cache folder, converts it and checks it; prints where it is.

If it is there already, every file is checked against its checksum, and fetched again where one is damaged.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Container
from pathlib import Path

from quire.core.errors import InputError
from quire.core.units import format_bytes
from quire.fetch.find import DEFAULT_MODEL

BAR_CELLS = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", default=DEFAULT_MODEL, help="model to fetch (default: %(default)s)"
    )
    parser.add_argument("--folder", type=Path, help="target folder (default: the cache folder, $QUIRE_CACHE)")


def run(options: argparse.Namespace) -> None:
    from quire.fetch.default import DEFAULT, default_folder, fetch_default
    from quire.fetch.folder import forget

    if options.model.lower() != DEFAULT.name:
        raise InputError(f"{options.model} cannot be fetched: {DEFAULT.name} can; other models are given as folders")
    folder = options.folder or default_folder()
    forget(folder)
    print(fetch_default(Bar(), folder))


class Bar:
    """Progress on standard error: a bar on a terminal, one line per finished stage elsewhere."""

    def __init__(self, hidden: Container[str] = ()) -> None:
        """`hidden`: stages that are not shown if there is no terminal."""
        self._hidden = hidden
        self._drawn = 0.0
        self._live = sys.stderr is not None and sys.stderr.isatty()
        self._ended: set[str] = set()

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage in self._ended or (stage in self._hidden and not self._live):
            return
        if done >= total:
            self._ended.add(stage)
            self._say(f"{stage:9} {format_bytes(total)}", "\n")
        elif self._live and time.monotonic() - self._drawn > 0.05:
            self._drawn = time.monotonic()
            cells = done * BAR_CELLS // total
            self._say(
                f"{stage:9} ┃{'█' * cells}{'·' * (BAR_CELLS - cells)}┃ {done / total:4.0%} of {format_bytes(total)}", ""
            )

    def _say(self, text: str, end: str) -> None:
        print(f"\r\x1b[K{text}" if self._live else text, end=end, file=sys.stderr, flush=True)
