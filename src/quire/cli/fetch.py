"""Downloads a model, checks every file against its digest, converts a GGUF file, and prints where the model is.

MODEL is the default model's name or a hub id: org/name, org/name@revision, org/name@revision:FILE.gguf. Models of the
hub go to the cache that is shared by its clients ($HF_HOME). Files that are there already are checked again.
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
from quire.fetch.hub_names import HubId, read_hub_id
from quire.models.read import read_config

BAR_CELLS = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", default=DEFAULT_MODEL, help="model to fetch (default: %(default)s)"
    )
    parser.add_argument(
        "--folder", type=Path, help="target folder of the default model (default: the cache folder, $QUIRE_CACHE)"
    )


def run(options: argparse.Namespace) -> None:
    from quire.fetch.default import DEFAULT, default_folder, fetch_default
    from quire.fetch.folder import forget

    if (hub_id := read_hub_id(options.model)) is not None:
        if options.folder is not None:
            raise InputError("models of the hub go to the shared cache: leave out --folder, or set HF_HOME")
        print(_from_hub(hub_id))
        return
    if options.model.lower() != DEFAULT.name:
        raise InputError(f"{options.model} cannot be fetched: give {DEFAULT.name}, or a hub id as org/name")
    folder = options.folder or default_folder()
    forget(folder)
    print(fetch_default(Bar(), folder))


def _from_hub(hub_id: HubId) -> Path:
    """A model whose configuration cannot be understood is refused before its weights are downloaded. Its memory is not
    compared with this machine's: it may be for another one."""
    from quire.fetch.find import configuration, converted
    from quire.fetch.hub import find_hub_model
    from quire.fetch.hub_download import complete, forget_compared

    model, progress = find_hub_model(hub_id), Bar()
    name, config = configuration(model)
    read_config(config, name)
    forget_compared(model)
    return converted(complete(model, progress), progress)


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
