"""Folders of safetensors, read one tensor at a time.

8 bytes          length of the header
header           JSON: name → dtype, shape, [from, to) of its bytes in the data
data             the tensors, one after another
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from quire.core.errors import ModelError
from quire.models.checkpoint import INDEX, read_index
from quire.worker.weights.write import Advance


def checkpoint_files(folder: Path) -> tuple[Path, ...]:
    """The files that the index names, or the only file."""
    index = folder / INDEX
    if index.exists():
        names = read_index(index)
        missing = [name for name in names if not (folder / name).exists()]
        if missing:
            raise ModelError(f"{folder} lacks {len(missing)} of {len(names)} files of weights, {missing[0]} first")
        return tuple(folder / name for name in names)
    files = tuple(sorted(folder.glob("*.safetensors")))
    if len(files) != 1:
        raise ModelError(f"{folder} has {len(files)} files *.safetensors and no index: 1 is expected")
    return files


def read_checkpoint(folder: Path, advance: Advance | None = None) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of a folder. They map the files: copy those that must outlive the iteration."""
    files = checkpoint_files(folder)
    total, done = sum(file.stat().st_size for file in files), 0
    for file in files:
        try:
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - not a dict
                    tensor = tensors.get_tensor(name)
                    yield name, tensor
                    done += tensor.nbytes
                    if advance:
                        advance(done, total)
        except SafetensorError as error:
            raise ModelError(f"{file} cannot be read as safetensors: {error}") from None
