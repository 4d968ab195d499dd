"""Folders of safetensors: written and read one tensor at a time.

8 bytes          length of the header
header           JSON: name → dtype, shape, [from, to) of its bytes in the data
data             the tensors, one after another
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from quire.core.errors import ModelError

if TYPE_CHECKING:
    import torch

Advance = Callable[[int, int], None]
"""Called with bytes done and bytes in all."""


def checkpoint_files(folder: Path) -> tuple[Path, ...]:
    """The files that the index names, or the one file there is."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        missing = [name for name in names if not (folder / name).exists()]
        if missing:
            raise ModelError(f"{folder} lacks {len(missing)} of {len(names)} files of weights, {missing[0]} first")
        return tuple(folder / name for name in names)
    files = tuple(sorted(folder.glob("*.safetensors")))
    if len(files) != 1:
        raise ModelError(f"{folder} has {len(files)} files *.safetensors and no index: 1 is expected")
    return files


def read_checkpoint(folder: Path, advance: Advance | None = None) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of a folder. They map the files: copy what is to live on."""
    from safetensors import SafetensorError, safe_open

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


def write_checkpoint(
    file: Path,
    parameters: Iterable[tuple[str, tuple[int, ...]]],
    values: Iterable[tuple[str, npt.NDArray[np.float32]]],
    advance: Advance | None = None,
) -> None:
    """One file of 32-bit floats: `parameters` foretells what `values` brings, in the same order."""
    spans: dict[str, object] = {"__metadata__": {"format": "pt"}}
    total = 0
    for name, shape in parameters:
        size = 4 * int(np.prod(shape))
        spans[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [total, total + size]}
        total += size
    header = json.dumps(spans).encode()
    header += b" " * (-len(header) % 8)
    with file.open("wb") as target:
        target.write(len(header).to_bytes(8, "little") + header)
        done = 0
        for name, value in values:
            assert spans[name] == {**_span(value, done)}, name
            target.write(np.ascontiguousarray(value).data)
            done += value.nbytes
            if advance:
                advance(done, total)
    assert done == total


def _span(value: npt.NDArray[np.float32], start: int) -> dict[str, object]:
    return {"dtype": "F32", "shape": list(value.shape), "data_offsets": [start, start + value.nbytes]}
