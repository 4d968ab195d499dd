"""Copies of bytes between the arena and a tier's host memory.

    out     pages ──▶ host memory
    back    host memory ──▶ pages

On a CPU a copy is complete when the call returns (`Directly`). On a GPU it runs concurrently with the steps (`bus.py`);
what a later step does to the same pages comes after it on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

Ints = npt.NDArray[np.int64]
Wait = Callable[[], float]
"""Waits until the bytes have arrived; returns the seconds that the copy took."""


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Contiguous bytes, and where each piece begins in the arena and in host memory."""

    arena: Ints
    host: Ints
    sizes: Ints

    def __len__(self) -> int:
        return len(self.sizes)


class Copies(Protocol):
    """Copies pieces in either direction, in order with the steps of the device."""

    def out(self, pieces: Pieces) -> Wait | None:
        """Starts after everything queued on the device. None: the copy is complete."""
        ...

    def back(self, pieces: Pieces) -> Wait | None: ...

    @property
    def is_busy(self) -> bool:
        """Whether any copy may still be under way."""
        ...

    def before(self, written: Ints, read: Ints) -> None:
        """Called before work is queued that writes and reads pages beginning at these bytes of the arena: that work
        waits for copies that use the same pages."""
        ...


class Directly:
    """`Copies` on a CPU: complete when the call returns."""

    def __init__(self, arena: torch.Tensor, host: torch.Tensor) -> None:
        self._arena, self._host = arena.numpy(), host.numpy().reshape(-1)
        self.is_busy = False

    def out(self, pieces: Pieces) -> None:
        for arena, host, size in zip(*_lists(pieces), strict=True):
            self._host[host : host + size] = self._arena[arena : arena + size]

    def back(self, pieces: Pieces) -> None:
        for arena, host, size in zip(*_lists(pieces), strict=True):
            self._arena[arena : arena + size] = self._host[host : host + size]

    def before(self, written: Ints, read: Ints) -> None:
        pass


def _lists(pieces: Pieces) -> tuple[list[int], list[int], list[int]]:
    return pieces.arena.tolist(), pieces.host.tolist(), pieces.sizes.tolist()


class RecordPages:
    """Pages of several records, and the blocks that hold them.

    record   │ page │ page │ page │        its pages one after another
    blocks   │   7   │   3   │  12 ┤       a page may lie in two of them
    """

    def __init__(self, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._blocks: list[int] = []
        self._begin = 0
        self._pages: list[Ints] = []
        self._sizes: list[Ints] = []
        self._places: list[Ints] = []

    def open(self, blocks: Sequence[int]) -> None:
        """Begins a record in these blocks: pages added from now on belong to it."""
        self._begin = len(self._blocks) * self._block_bytes
        self._blocks += blocks

    def add(self, pages: Ints, page_bytes: int, begin: int) -> None:
        """Adds pages, by where they begin in the arena; the first lies at byte `begin` of the record."""
        self._pages.append(pages)
        self._sizes.append(np.full(len(pages), page_bytes))
        self._places.append(self._begin + begin + page_bytes * np.arange(len(pages)))

    def pieces(self) -> Pieces:
        """The pages, cut where a block ends."""
        if not self._pages:
            return Pieces(*(np.empty(0, dtype=np.int64) for _ in range(3)))
        size = self._block_bytes
        pages, sizes, begins = (np.concatenate(some) for some in (self._pages, self._sizes, self._places))
        first, end_block = begins // size, -(-(begins + sizes) // size)
        counts = end_block - first
        page = np.repeat(np.arange(len(pages)), counts)
        nth = np.arange(len(page)) - (np.cumsum(counts) - counts)[page]
        block = first[page] + nth
        begin = np.maximum(begins[page], block * size)
        end = np.minimum((begins + sizes)[page], (block + 1) * size)
        host = np.array(self._blocks, dtype=np.int64)[block] * size + begin - block * size
        return Pieces(pages[page] + begin - begins[page], host, end - begin)
