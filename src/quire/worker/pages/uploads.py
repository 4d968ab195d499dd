"""Uploads of a step's arrays from numpy to the device.

DirectUpload   array by array; on a CPU nothing is copied
StagedUpload   packed in pinned memory, then copied at once for the whole step
FixedUpload    the same, to fixed places: a graph reads every step's arrays where it read them when it was recorded

pinned   [ ids | positions | items | … | tables, as wide as they are now ]
             │ one kernel
device   [ ids | positions | items | … | tables ] ──▶ fixed tables, as wide as they may become
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch

ALIGNED_BYTES = 256


class Upload(Protocol):
    """Copies arrays to the device."""

    def __call__(self, values: np.ndarray) -> torch.Tensor:
        """The values on the device, valid after the next `flush`."""
        ...

    def table(self, values: np.ndarray, columns: int) -> torch.Tensor:
        """The same; the last axis may be as long as `columns`, with anything after `values`."""
        ...


class DirectUpload:
    """Copies each array by itself."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __call__(self, values: np.ndarray) -> torch.Tensor:
        """From pinned memory: otherwise a copy would wait for everything queued on the device."""
        tensor = torch.from_numpy(np.ascontiguousarray(values))
        return tensor.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else tensor

    def table(self, values: np.ndarray, columns: int) -> torch.Tensor:
        del columns
        return self(values)


class CountingUpload(DirectUpload):
    """Counts the bytes that a `FixedUpload` needs."""

    size_bytes = 0

    def __call__(self, values: np.ndarray) -> torch.Tensor:
        self.size_bytes += align(values.nbytes)
        return super().__call__(values)

    def table(self, values: np.ndarray, columns: int) -> torch.Tensor:
        self.size_bytes += align(values.nbytes // max(1, values.shape[-1]) * columns)
        return super().__call__(values)


class NoEvent:
    """Stands for an event on a device that does not run ahead of Python."""

    def record(self) -> None:
        pass

    def synchronize(self) -> None:
        pass


def event_on(device: torch.device) -> NoEvent | torch.cuda.Event:
    return torch.cuda.Event() if device.type == "cuda" else NoEvent()  # type: ignore[no-untyped-call]


def pinned_memory(size_bytes: int, device: torch.device) -> torch.Tensor:
    """Main memory that the device copies from and to while Python continues."""
    return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")


def align(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNED_BYTES) * ALIGNED_BYTES


def carry(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copies between a device and pinned memory, by a kernel: copy engines may be busy with a tier's pages for
    milliseconds, and a step would wait for all of them."""
    if "cuda" in (target.device.type, source.device.type):
        from quire.worker.kernels import pages

        pages.carry(target, source)
    else:
        target.copy_(source)


class StagedUpload:
    """Packs the arrays of one step at a time: `begin`, then arrays, then `flush` before anything reads them."""

    def __init__(self, device: torch.device, buffers: int, size_bytes: int = 1 << 20) -> None:
        """`buffers`: of pinned memory, filled in turn. `begin` waits until the copy from its buffer is complete.
        With one for each step in flight it never waits: that copy was of a step whose result is known."""
        self.device = device
        self._hosts = [pinned_memory(size_bytes, device) for _ in range(buffers)]
        self._copied = [event_on(device) for _ in range(buffers)]
        self._turn = 0
        self._used = 0
        self._target = torch.empty(0, dtype=torch.uint8, device=device)

    @property
    def size_bytes(self) -> int:
        return self._hosts[0].numel()

    def begin(self) -> None:
        self._turn = (self._turn + 1) % len(self._hosts)
        self._copied[self._turn].synchronize()
        self._target, self._used = self._memory(), 0

    def _memory(self) -> torch.Tensor:
        return torch.empty(self.size_bytes, dtype=torch.uint8, device=self.device)

    def __call__(self, values: np.ndarray) -> torch.Tensor:
        if self._used + values.nbytes > self.size_bytes:
            self._grow(values.nbytes)
        begin, end = self._used, self._used + values.nbytes
        self._hosts[self._turn][begin:end].numpy()[:] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        self._used = align(end)
        dtype = torch.from_numpy(np.empty(0, dtype=values.dtype)).dtype
        return self._target[begin:end].view(dtype).view(values.shape)

    def table(self, values: np.ndarray, columns: int) -> torch.Tensor:
        del columns
        return self(values)

    def _grow(self, needed_bytes: int) -> None:
        """Copies what was packed so far; its tensors stay valid."""
        self.flush()
        size = 2 * align(max(self.size_bytes, needed_bytes))
        for event in self._copied:
            event.synchronize()
        self._hosts = [pinned_memory(size, self.device) for _ in self._hosts]
        self.begin()

    def flush(self) -> None:
        used = min(self._used, self.size_bytes)
        carry(self._target[:used], self._hosts[self._turn][:used])
        self._copied[self._turn].record()


class FixedUpload(StagedUpload):
    """Arrays of the same shapes in the same order get the same places; `shapes` lists them since `begin`. Graphs of all
    sizes share one memory, because only one runs at a time."""

    def __init__(self, device: torch.device, buffers: int, size_bytes: int) -> None:
        super().__init__(device, buffers, size_bytes)
        self._place = torch.empty(size_bytes, dtype=torch.uint8, device=device)
        self._tables: list[torch.Tensor] = []
        self._wide: list[tuple[torch.Tensor, np.ndarray]] = []
        self.shapes: list[tuple[tuple[int, ...], np.dtype[Any]]] = []

    @property
    def table_bytes(self) -> int:
        return sum(table.numel() * table.element_size() for table in self._tables)

    def begin(self) -> None:
        super().begin()
        self._wide, self.shapes = [], []

    def _memory(self) -> torch.Tensor:
        return self._place

    def _grow(self, needed_bytes: int) -> None:
        raise AssertionError(f"{needed_bytes} bytes more than the largest step was counted with")

    def __call__(self, values: np.ndarray) -> torch.Tensor:
        self.shapes.append((values.shape, values.dtype))
        return super().__call__(values)

    def table(self, values: np.ndarray, columns: int) -> torch.Tensor:
        number, shape = len(self._wide), (*values.shape[:-1], columns)
        self.shapes.append((shape, values.dtype))
        if number == len(self._tables):
            kept = torch.zeros(shape, dtype=torch.from_numpy(values[:0]).dtype, device=self.device)
            self._tables.append(kept)
        table = self._tables[number][: len(values)]
        assert table.shape == shape, "the largest graph is recorded first"
        self._wide.append((table, values))
        return table

    def flush(self) -> None:
        """Packs tables last, as wide as this step needs them, and copies them from there to the fixed ones."""
        narrow = [(table, StagedUpload.__call__(self, values)) for table, values in self._wide]
        super().flush()
        for table, values in narrow:
            table[..., : values.shape[-1]].copy_(values)
