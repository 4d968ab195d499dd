"""A packed folder → one of plain 32-bit floats that transformers loads: for comparisons with it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from safetensors.torch import save_file

from quire.worker.weights.formats.choice import packed_readers
from quire.worker.weights.packed import Codes
from quire.worker.weights.safetensors import read_checkpoint

_PARTS = (*(f".{kind.value}" for kind in Codes), ".scales", ".minimums")


def expand(folder: Path, target: Path) -> Path:
    """Fills a new folder with what the weights mean. A folder without packed weights is copied."""
    target.mkdir(parents=True)
    with packed_readers(folder) as readers:
        found = {name: read().dequantised() for name, read in (readers or {}).items()}
    plain = {name: tensor for name, tensor in read_checkpoint(folder) if not (found and name.endswith(_PARTS))}
    tensors = {name: tensor.float().contiguous() for name, tensor in (plain | found).items()}
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config.pop("quantization_config", None)
    (target / "config.json").write_text(json.dumps(config | {"dtype": "float32"}))
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            shutil.copyfile(folder / name, target / name)
    return target
