"""Which format a checkpoint folder has, and the readers of its packed parameters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from quire.core.errors import ModelError
from quire.worker.weights.formats import quire
from quire.worker.weights.formats.stored import Readers, open_stored


@contextmanager
def packed_readers(folder: Path) -> Iterator[Readers]:
    """Empty: no parameter is packed."""
    section = _section(folder)
    if section is None:
        yield {}
        return
    method = section.get("quant_method")
    if method != "quire":
        raise ModelError(f"{folder} is quantised by {method}, which is not read")
    with open_stored(folder) as stored:
        yield quire.find(stored)


def _section(folder: Path) -> dict[str, Any] | None:
    config = json.loads((folder / "config.json").read_text())
    section = config.get("quantization_config")
    return section if isinstance(section, dict) else None
