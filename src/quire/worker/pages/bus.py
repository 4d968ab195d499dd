"""Copies between a GPU and pinned host memory by its copy engines: no kernel runs for them, and Python does not wait.

    steps   ├──── 1 ────┼──── 2 ────┼──── 3 ────┤        a step waits for a copy only where it needs the same pages
    out        ├── pages of 1 ──▶ host ──┤
    back                    ├── host ──▶ pages ──┤

One call hands the driver all pieces of a copy. Kernels that read or write host memory themselves, and kernels that
gather pages for larger copies, slow decode steps more (docs/log.md).
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable

import numpy as np
import torch

from quire.worker.pages.copies import Ints, Pieces, Wait
from quire.worker.pages.fences import Fences, Way

IN_ORDER = 1
"""CU_MEMCPY_SRC_ACCESS_ORDER_STREAM: sources are read in stream order."""
_LOG = logging.getLogger("quire.tiers")


class Attributes(ctypes.Structure):
    """CUmemcpyAttributes of the driver: places are hints for memory that is not pinned."""

    _fields_ = (
        ("order", ctypes.c_int),
        ("source_place", ctypes.c_int * 2),
        ("target_place", ctypes.c_int * 2),
        ("flags", ctypes.c_uint),
    )


class Bus:
    """`Copies` on two streams of a GPU, one for each direction."""

    def __init__(self, arena: torch.Tensor, host: torch.Tensor, sheet_bytes: int) -> None:
        self._arena, self._host = arena, host.view(-1)
        self._streams = {way: torch.cuda.Stream(arena.device) for way in Way}  # type: ignore[no-untyped-call]
        self._fences: Fences[torch.cuda.Event] = Fences(arena.numel(), sheet_bytes)
        self._batch = batch_call()

    def out(self, pieces: Pieces) -> Wait:
        return self._copy(Way.OUT, pieces, self._fences.ends(Way.BACK, pieces.arena))

    def back(self, pieces: Pieces) -> Wait:
        return self._copy(Way.BACK, pieces, self._fences.ends(Way.OUT, pieces.arena))

    @property
    def is_busy(self) -> bool:
        return self._fences.is_busy

    def before(self, written: Ints, read: Ints) -> None:
        ends = [
            *self._fences.ends(Way.OUT, written),
            *self._fences.ends(Way.BACK, written),
            *self._fences.ends(Way.BACK, read),
        ]
        for end in ends:
            torch.cuda.current_stream(self._arena.device).wait_event(end)

    def _copy(self, way: Way, pieces: Pieces, after: list[torch.cuda.Event]) -> Wait:
        stream = self._streams[way]
        stream.wait_stream(torch.cuda.current_stream(self._arena.device))
        for end in after:
            stream.wait_event(end)
        begin, end = (torch.cuda.Event(enable_timing=True, blocking=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record(stream)
        if self._batch is None:
            self._one_by_one(way, pieces, stream)
        elif len(pieces):  # the driver refuses to copy nothing: a mark has no bytes
            arena, host = pieces.arena + self._arena.data_ptr(), pieces.host + self._host.data_ptr()
            self._batch(*((arena, host) if way is Way.BACK else (host, arena)), pieces.sizes, stream.cuda_stream)
        end.record(stream)
        self._fences.add(way, pieces.arena, end)

        def wait() -> float:
            end.synchronize()
            return float(begin.elapsed_time(end)) / 1e3

        return wait

    def _one_by_one(self, way: Way, pieces: Pieces, stream: torch.cuda.Stream) -> None:
        each = zip(pieces.arena.tolist(), pieces.host.tolist(), pieces.sizes.tolist(), strict=True)
        with torch.cuda.stream(stream):
            for arena, host, size in each:
                here, there = self._arena[arena : arena + size], self._host[host : host + size]
                (there if way is Way.OUT else here).copy_(here if way is Way.OUT else there, non_blocking=True)


BatchCopy = Callable[[Ints, Ints, Ints, int], None]
"""Targets, sources, sizes in bytes, stream."""


def batch_call() -> BatchCopy | None:
    """Many copies in one call of the driver; None: the driver is older than CUDA 12.8."""
    try:
        call = ctypes.CDLL("libcuda.so.1").cuMemcpyBatchAsync
    except (OSError, AttributeError):
        _LOG.warning("this driver has no batches of copies (CUDA 12.8): pages go to host memory one by one")
        return None
    attributes, first, failed = Attributes(IN_ORDER), ctypes.c_size_t(0), ctypes.c_size_t(0)

    def batch(targets: Ints, sources: Ints, sizes: Ints, stream: int) -> None:
        arrays = [np.ascontiguousarray(values, dtype=np.uint64) for values in (targets, sources, sizes)]
        pointers = [ctypes.c_void_p(values.ctypes.data) for values in arrays]
        count, one = ctypes.c_size_t(len(sizes)), ctypes.c_size_t(1)
        code = call(
            *pointers, count, ctypes.byref(attributes), ctypes.byref(first), one, ctypes.byref(failed),
            ctypes.c_void_p(stream),
        )  # fmt: skip
        if code:
            raise RuntimeError(
                f"the driver refused to copy {len(sizes):,} pieces: error {code} at piece {failed.value}"
            )

    return batch
