"""The index of a checkpoint in several files: which file has each tensor."""

from __future__ import annotations

import json
from pathlib import Path

from quire.core.errors import ModelError

INDEX = "model.safetensors.index.json"


def read_index(path: Path) -> tuple[str, ...]:
    """The files that it names, in order. They lie next to it: other places are refused."""
    try:
        named = json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()
        names = tuple(sorted({str(name) for name in named}))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ModelError(f"{path} is not the index of a checkpoint: download it again") from None
    if odd := [name for name in names if "/" in name or "\\" in name or not name.endswith(".safetensors")]:
        raise ModelError(f"{path} names {odd[0]!r}, which is no file of safetensors next to it")
    return names
