"""The metadata of a GGUF file, without its lists and tensors: all that a plan needs, read quickly.

    magic, version, tensors, pairs │ key, type, value │ … │ name, sizes, sort, offset │ … │ data

Numbers are little-endian, a string is its length and its bytes, a list its type, its length and its values.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from quire.core.errors import ModelError

MAGIC = b"GGUF"
_NUMBERS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
"""By type: its code in `struct`."""
_STRING, _LIST = 8, 9


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Metadata, and how each tensor is stored."""

    fields: Mapping[str, str | int | float]
    lengths: Mapping[str, int]
    """Lengths of lists."""
    sorts: Mapping[str, int]
    """How each tensor is stored, by its name."""


def read_header(path: Path) -> GgufHeader:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data).header()
    except (OSError, ValueError, OverflowError, struct.error, KeyError) as error:
        raise ModelError(f"{path} cannot be read as GGUF: {error}") from None


class _Reader:
    """Reads the file from its beginning."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._place = len(MAGIC)

    def header(self) -> GgufHeader:
        if self._data[: len(MAGIC)] != MAGIC:
            raise ValueError("it begins otherwise")
        version = self._number("I")
        if version not in (2, 3):
            raise ValueError(f"its version is {version}, read are 2 and 3")
        tensors, pairs = self._number("Q"), self._number("Q")
        fields: dict[str, str | int | float] = {}
        lengths: dict[str, int] = {}
        for _ in range(pairs):
            name, sort = self._text(), self._number("I")
            if sort == _LIST:
                lengths[name] = self._skip_list()
            else:
                fields[name] = self._text() if sort == _STRING else self._number(_NUMBERS[sort])
        return GgufHeader(fields, lengths, dict(self._tensor() for _ in range(tensors)))

    def _tensor(self) -> tuple[str, int]:
        name, dimensions = self._text(), self._number("I")
        self._place += 8 * dimensions
        sort = self._number("I")
        self._place += 8
        return name, sort

    def _number(self, form: str) -> int:
        (value,) = struct.unpack_from(f"<{form}", self._data, self._place)
        self._place += struct.calcsize(f"<{form}")
        return value  # type: ignore[no-any-return]

    def _text(self) -> str:
        size = self._number("Q")
        text = self._data[self._place : self._place + size].decode()
        self._place += size
        return text

    def _skip_list(self) -> int:
        sort, length = self._number("I"), self._number("Q")
        if sort == _STRING:
            for _ in range(length):
                size = self._number("Q")
                self._place += size
        else:
            self._place += length * struct.calcsize(f"<{_NUMBERS[sort]}")
        return length
