"""Arrays of integers as bytes, as narrow as their values allow.

    [7 8 9 10]        differences are all 1: no byte per number
    [-1 -1 -1]        no byte per number
    [40 2000 17 …]    two bytes each, counted from the least

Small arrays of a step differ little from one number to the next, or not at all: most need less than a byte per number.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
_HEAD = struct.Struct("<BIqq")
"""Bytes per number, and IS_STEPS if they are differences; how many numbers; the least; the first of all."""
IS_STEPS = 16
_TYPES = {width: np.dtype(f"<u{width}") for width in (1, 2, 4, 8)}


class IntWriter:
    """Writes arrays one after another."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def add(self, values: npt.NDArray[Any]) -> None:
        if not len(values):
            self._parts.append(_HEAD.pack(0, 0, 0, 0))
            return
        values = values.astype(np.int64, copy=False)
        width, least, offsets = _narrow(values)
        flag, first = 0, int(values[0])
        if width and len(values) > 1:
            steps = _narrow(np.diff(values))
            if steps[0] < width:
                flag, (width, least, offsets) = IS_STEPS, steps
        self._parts.append(_HEAD.pack(width | flag, len(values), least, first))
        if width:
            self._parts.append(offsets.astype(_TYPES[width]).tobytes())

    def bytes(self) -> bytes:
        return b"".join(self._parts)


class IntReader:
    """Reads them in the same order."""

    def __init__(self, data: bytes) -> None:
        self._data, self._place = data, 0

    def take(self) -> Ints:
        form, count, least, first = _HEAD.unpack_from(self._data, self._place)
        self._place += _HEAD.size
        width, is_steps = form % IS_STEPS, form >= IS_STEPS
        numbers = count - is_steps
        if width:
            offsets = np.frombuffer(self._data, _TYPES[width], numbers, self._place).astype(np.int64)
            self._place += width * numbers
            offsets += least
        else:
            offsets = np.full(numbers, least, dtype=np.int64)
        return np.concatenate([[first], first + np.cumsum(offsets)]) if is_steps else offsets

    @property
    def is_at_end(self) -> bool:
        return self._place == len(self._data)


def _narrow(values: Ints) -> tuple[int, int, Ints]:
    """Bytes per number, the least, and what each adds to it."""
    least = int(values.min())
    spread = int(values.max()) - least
    width = 0 if not spread else 1 if spread < 1 << 8 else 2 if spread < 1 << 16 else 4 if spread < 1 << 32 else 8
    return width, least, values - least
