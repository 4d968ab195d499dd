"""Tensors of a folder of safetensors, read in parts: no more of a file is held in memory than was asked for.

    rows [a, b)       one read
    columns [a, b)    blocks of whole rows, cut one after another

Files are read, not mapped: what is mapped counts as memory of the process once it was touched.
"""

from __future__ import annotations

import json
import math
import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open

from quire.core.errors import ModelError
from quire.worker.weights.safetensors import checkpoint_files

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
BLOCK_BYTES = 64 << 20
"""Of whole rows, while columns are cut from them."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Indexed by `...`, or by a slice for each of its first dimensions, of which one is shorter than the dimension.
    Results lie in memory of their own."""

    file: int
    begin: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def __getitem__(self, wanted: Any) -> torch.Tensor:
        if wanted is ...:
            return self._read(0, self.shape)
        slices = wanted if isinstance(wanted, tuple) else (wanted,)
        first, *rest = (one.indices(size)[:2] for one, size in zip(slices, self.shape, strict=False))
        row = math.prod(self.shape[1:]) * self.dtype.itemsize
        if all(range(*one) == range(size) for one, size in zip(rest, self.shape[1:], strict=False)):
            return self._read(first[0] * row, (first[1] - first[0], *self.shape[1:]))
        cut = tuple(slice(*one) for one in rest)
        step = max(1, BLOCK_BYTES // max(1, row))
        blocks = range(first[0], first[1], step)
        sizes = [min(step, first[1] - begin) for begin in blocks]
        found = torch.empty(first[1] - first[0], *(end - begin for begin, end in rest), *self.shape[1 + len(rest) :],
                            dtype=self.dtype)  # fmt: skip
        for begin, size in zip(blocks, sizes, strict=True):
            whole = self._read(begin * row, (size, *self.shape[1:]))
            found[begin - first[0] : begin - first[0] + size] = whole[(slice(None), *cut)]
        return found

    def _read(self, begin: int, shape: tuple[int, ...]) -> torch.Tensor:
        found = torch.empty(shape, dtype=self.dtype)
        if found.numel():
            buffer = memoryview(found.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
            done = 0
            while done < len(buffer):
                count = os.preadv(self.file, [buffer[done:]], self.begin + begin + done)
                if not count:
                    raise ModelError(f"a file of weights ends {len(buffer) - done:,} bytes before a tensor does")
                done += count
        return found


class StoredTensors:
    """All tensors of a folder, by name."""

    def __init__(self, folder: Path) -> None:
        self._open = ExitStack()
        self._tensors: dict[str, StoredTensor] = {}
        for path in checkpoint_files(folder):
            self._add(path)

    def _add(self, path: Path) -> None:
        file = os.open(path, os.O_RDONLY)
        self._open.callback(os.close, file)
        try:
            with safe_open(path, framework="pt"):  # refuses sizes and offsets that are not those of its data
                size = int.from_bytes(os.pread(file, 8, 0), "little")
                header = json.loads(os.pread(file, size, 8))
            for name, entry in header.items():
                if name != "__metadata__":
                    begin = 8 + size + entry["data_offsets"][0]
                    self._tensors[name] = StoredTensor(file, begin, tuple(entry["shape"]), DTYPES[entry["dtype"]])
        except (SafetensorError, OSError, KeyError) as error:
            raise ModelError(f"{path} cannot be read as safetensors: {error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._open.close()

    def __getitem__(self, name: str) -> StoredTensor:
        return self._tensors[name]

    def names(self) -> list[str]:
        return list(self._tensors)
