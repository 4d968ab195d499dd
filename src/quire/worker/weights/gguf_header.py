"""The header of a GGUF file: its metadata, and where each tensor lies.

    magic, version, tensors, pairs │ key, type, value │ … │ name, sizes, sort, offset │ … │ data

Numbers are little-endian, a string is its length and its bytes, a list its type, its length and its values. A plan
needs no long lists (tokens, merges): they are counted and skipped.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.core.errors import ModelError

MAGIC = b"GGUF"
_NUMBERS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
"""By type: its code in `struct`."""
_STRING, _LIST = 8, 9
ALIGNMENT = "general.alignment"
SHORT_LIST = 1024
"""Lists of at most so many numbers are read in any case: they have an entry for each layer."""
_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor of a file: its shape (the slowest dimension first), how it is stored, and where its bytes begin."""

    shape: tuple[int, ...]
    sort: int
    offset: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Metadata, and where each tensor is."""

    fields: Mapping[str, Any]
    lengths: Mapping[str, int]
    """Lengths of lists."""
    tensors: Mapping[str, GgufTensor]


def read_header(path: Path, with_lists: bool = False) -> GgufHeader:
    """`with_lists`: `fields` has the long lists, too."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data, with_lists).header()
    except (OSError, ValueError, OverflowError, struct.error, KeyError) as error:
        raise ModelError(f"{path} cannot be read as GGUF: {error}") from None


class _Reader:
    """Reads the file from its beginning."""

    def __init__(self, data: mmap.mmap, with_lists: bool) -> None:
        self._data, self._with_lists = data, with_lists
        self._place = len(MAGIC)

    def header(self) -> GgufHeader:
        if self._data[: len(MAGIC)] != MAGIC:
            raise ValueError("it begins otherwise")
        version = self._number("I")
        if version not in (2, 3):
            raise ValueError(f"its version is {version}, read are 2 and 3")
        tensors, pairs = self._number("Q"), self._number("Q")
        fields: dict[str, Any] = {}
        lengths: dict[str, int] = {}
        for _ in range(pairs):
            name, sort = self._text(), self._number("I")
            if sort == _LIST:
                lengths[name], values = self._list()
                if values is not None:
                    fields[name] = values
            else:
                fields[name] = self._text() if sort == _STRING else self._number(_NUMBERS[sort])
        found = dict(self._tensor() for _ in range(tensors))
        start = self._data_start(fields.get(ALIGNMENT, 32))
        placed = {name: GgufTensor(shape, sort, start + offset) for name, (shape, sort, offset) in found.items()}
        return GgufHeader(fields, lengths, placed)

    def _data_start(self, alignment: Any) -> int:
        if not isinstance(alignment, int) or not 0 < alignment <= 1 << 16:
            raise ValueError(f"its {ALIGNMENT} is {alignment}")
        return -(-self._place // alignment) * alignment

    def _tensor(self) -> tuple[str, tuple[tuple[int, ...], int, int]]:
        name, dimensions = self._text(), self._number("I")
        if dimensions > _DIMENSIONS:
            raise ValueError(f"{name} has {dimensions} dimensions, at most are {_DIMENSIONS}")
        sizes = [self._number("Q") for _ in range(dimensions)]
        return name, (tuple(reversed(sizes)), self._number("I"), self._number("Q"))

    def _number(self, form: str) -> int:
        (value,) = struct.unpack_from(f"<{form}", self._data, self._place)
        self._place += struct.calcsize(f"<{form}")
        return value  # type: ignore[no-any-return]

    def _text(self) -> str:
        size = self._number("Q")
        if size > len(self._data) - self._place:
            raise ValueError(f"a text of {size:,} bytes at byte {self._place:,} goes beyond the end")
        text = self._data[self._place : self._place + size].decode()
        self._place += size
        return text

    def _list(self) -> tuple[int, list[Any] | None]:
        """Its length, and its values where they are read."""
        sort, length = self._number("I"), self._number("Q")
        if sort == _STRING:
            if self._with_lists:
                self._require(8 * length)
                return length, [self._text() for _ in range(length)]
            for _ in range(length):
                size = self._number("Q")
                self._place += size
            return length, None
        form = _NUMBERS[sort]
        size = length * struct.calcsize(f"<{form}")
        self._require(size)
        values = None
        if self._with_lists or length <= SHORT_LIST:
            values = list(struct.unpack_from(f"<{length}{form}", self._data, self._place))
        self._place += size
        return length, values

    def _require(self, size: int) -> None:
        if size > len(self._data) - self._place:
            raise ValueError(f"a list of {size:,} bytes at byte {self._place:,} goes beyond the end")
