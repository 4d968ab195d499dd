"""Which sheets copies to and from host memory are using, and what to wait for before somebody else does.

A page that goes out must not be written to before it was read, one that comes in not be used before it is there. Copies
of one way are done in order, so the latest one that uses a sheet stands for all before it.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


class Way(Enum):
    OUT = "out"
    BACK = "back"


class Ending(Protocol):
    def query(self) -> bool:
        """Whether it has come. A question."""
        ...


End = TypeVar("End", bound=Ending)


class Fences(Generic[End]):
    def __init__(self, arena_bytes: int, sheet_bytes: int) -> None:
        self._sheet_bytes = sheet_bytes
        sheets = -(-arena_bytes // sheet_bytes)
        self._latest = {way: np.zeros(sheets, dtype=np.int64) for way in Way}
        """By sheet: the number of the last copy that uses it."""
        self._open: dict[Way, deque[tuple[int, End]]] = {way: deque() for way in Way}
        self._count = 0

    @property
    def is_busy(self) -> bool:
        """Whether any copy has not ended: the last of a way ends last."""
        return any(copies and not copies[-1][1].query() for copies in self._open.values())

    def add(self, way: Way, pages: Ints, end: End) -> None:
        """A copy that uses pages which begin at these bytes, until `end`."""
        self._count += 1
        self._latest[way][pages // self._sheet_bytes] = self._count
        copies = self._open[way]
        copies.append((self._count, end))
        while copies[0][1].query() and len(copies) > 1:
            copies.popleft()

    def ends(self, way: Way, pages: Ints) -> list[End]:
        """What must have come before nothing of this way uses these pages: one at most."""
        copies = self._open[way]
        if not copies or not len(pages):
            return []
        latest = int(self._latest[way][pages // self._sheet_bytes].max())
        return [end for number, end in copies if number == latest and not end.query()]
