"""Which sheets are in use by copies to and from host memory, and which copies other work must wait for.

A page that is copied out must not be written before it was read; one that is copied in must not be used before it has
arrived. Copies in one direction complete in order, so the latest one that uses a sheet stands for all before it.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


class Way(Enum):
    """Direction of a copy, seen from the arena."""

    OUT = "out"
    BACK = "back"


class CopyEnd(Protocol):
    """The end of a copy, such as an event of CUDA."""

    def query(self) -> bool:
        """Whether it was reached."""
        ...


End = TypeVar("End", bound=CopyEnd)


class Fences(Generic[End]):
    """The copies under way, by direction and sheet."""

    def __init__(self, arena_bytes: int, sheet_bytes: int) -> None:
        self._sheet_bytes = sheet_bytes
        sheets = -(-arena_bytes // sheet_bytes)
        self._latest = {way: np.zeros(sheets, dtype=np.int64) for way in Way}
        """By sheet: the number of the last copy that uses it."""
        self._open: dict[Way, deque[tuple[int, End]]] = {way: deque() for way in Way}
        self._count = 0

    @property
    def is_busy(self) -> bool:
        """Whether any copy has not ended: the last of a direction ends last."""
        return any(copies and not copies[-1][1].query() for copies in self._open.values())

    def add(self, way: Way, pages: Ints, end: End) -> None:
        """Adds a copy that uses pages beginning at these bytes until `end`."""
        self._count += 1
        self._latest[way][pages // self._sheet_bytes] = self._count
        copies = self._open[way]
        copies.append((self._count, end))
        while copies[0][1].query() and len(copies) > 1:
            copies.popleft()

    def ends(self, way: Way, pages: Ints) -> list[End]:
        """The ends after which no copy in this direction uses these pages: at most one."""
        copies = self._open[way]
        if not copies or not len(pages):
            return []
        latest = int(self._latest[way][pages // self._sheet_bytes].max())
        return [end for number, end in copies if number == latest and not end.query()]
