"""From numpy to the device: what a step needs.

Direct   array by array, as they come: on a CPU nothing travels
Staged   packed in pinned memory, then carried up in one go for the whole step
Fixed    the same, to places that stay: what a graph was recorded with is where the next step writes

pinned   [ ids | positions | items | … | tables, as wide as they are now ]
             │ one kernel
device   [ ids | positions | items | … | tables ] ──▶ tables that stay, as wide as they may become
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch

ALIGNED_BYTES = 256
HOST_BUFFERS = 3
"""Steps overlap: a buffer is filled while copies from the others may still be on their way."""


class Upload(Protocol):
    def __call__(self, values: np.ndarray) -> torch.Tensor:
        """The values on the device, from the next `flush` on."""
        ...

    def table(self, values: np.ndarray, columns: int) -> torch.Tensor:
        """The same; the last axis may become as long as `columns`, and what lies behind `values` is anything."""
        ...


class Direct:
    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __call__(self, values: np.ndarray) -> torch.Tensor:
        """From pinned memory: else a copy would wait for all that the device has yet to do."""
        tensor = torch.from_numpy(np.ascontiguousarray(values))
        return tensor.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else tensor

    def table(self, values: np.ndarray, columns: int) -> torch.Tensor:
        del columns
        return self(values)


class Counting(Direct):
    """How many bytes a `Fixed` needs."""

    size_bytes = 0

    def __call__(self, values: np.ndarray) -> torch.Tensor:
        self.size_bytes += aligned(values.nbytes)
        return super().__call__(values)

    def table(self, values: np.ndarray, columns: int) -> torch.Tensor:
        self.size_bytes += aligned(values.nbytes // max(1, values.shape[-1]) * columns)
        return super().__call__(values)


class Now:
    """An event of a device that does not run ahead."""

    def record(self) -> None:
        pass

    def synchronize(self) -> None:
        pass


def event_on(device: torch.device) -> Now | torch.cuda.Event:
    return torch.cuda.Event() if device.type == "cuda" else Now()  # type: ignore[no-untyped-call]


def pinned(size_bytes: int, device: torch.device) -> torch.Tensor:
    """Main memory that the device copies from and to while Python goes on."""
    return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")


def aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNED_BYTES) * ALIGNED_BYTES


def carry(target: torch.Tensor, source: torch.Tensor) -> None:
    """Between a device and pinned memory. By a kernel: a copy engine may be busy with a tier's pages for milliseconds,
    and would let a step wait for all of them."""
    if "cuda" in (target.device.type, source.device.type):
        from quire.worker.kernels import pages

        pages.carry(target, source)
    else:
        target.copy_(source)


class Staged:
    """One step at a time: `begin`, then arrays, then `flush` before anything reads them."""

    def __init__(self, device: torch.device, size_bytes: int = 1 << 20) -> None:
        self.device = device
        self._hosts = [pinned(size_bytes, device) for _ in range(HOST_BUFFERS)]
        self._copied = [event_on(device) for _ in range(HOST_BUFFERS)]
        self._turn = 0
        self._used = 0
        self._target = torch.empty(0, dtype=torch.uint8, device=device)

    @property
    def size_bytes(self) -> int:
        return self._hosts[0].numel()

    def begin(self) -> None:
        self._turn = (self._turn + 1) % HOST_BUFFERS
        self._copied[self._turn].synchronize()
        self._target, self._used = self._memory(), 0

    def _memory(self) -> torch.Tensor:
        return torch.empty(self.size_bytes, dtype=torch.uint8, device=self.device)

    def __call__(self, values: np.ndarray) -> torch.Tensor:
        if self._used + values.nbytes > self.size_bytes:
            self._grow(values.nbytes)
        begin, end = self._used, self._used + values.nbytes
        self._hosts[self._turn][begin:end].numpy()[:] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        self._used = aligned(end)
        dtype = torch.from_numpy(np.empty(0, dtype=values.dtype)).dtype
        return self._target[begin:end].view(dtype).view(values.shape)

    def table(self, values: np.ndarray, columns: int) -> torch.Tensor:
        del columns
        return self(values)

    def _grow(self, needed_bytes: int) -> None:
        """What was packed so far goes first; its tensors stay where they are."""
        self.flush()
        size = 2 * aligned(max(self.size_bytes, needed_bytes))
        for event in self._copied:
            event.synchronize()
        self._hosts = [pinned(size, self.device) for _ in range(HOST_BUFFERS)]
        self.begin()

    def flush(self) -> None:
        used = min(self._used, self.size_bytes)
        carry(self._target[:used], self._hosts[self._turn][:used])
        self._copied[self._turn].record()


class Fixed(Staged):
    """Arrays of the same shapes in the same order find the same places; `shapes` says which came since `begin`. One
    memory serves graphs of all sizes, for one of them runs at a time."""

    def __init__(self, device: torch.device, size_bytes: int) -> None:
        super().__init__(device, size_bytes)
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
        """Tables come last, for they are as wide as this step needs; from there they go to where they stay."""
        narrow = [(table, Staged.__call__(self, values)) for table, values in self._wide]
        super().flush()
        for table, values in narrow:
            table[..., : values.shape[-1]].copy_(values)
