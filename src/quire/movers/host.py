"""Host memory for records: one allocation, cut into blocks, pinned where a device copies to and from it."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import numpy as np
import torch

from quire.core.errors import DoesNotFit
from quire.core.units import format_bytes


class HostMemory:
    def __init__(self, budget_bytes: int, block_bytes: int, is_pinned: bool = False) -> None:
        self.blocks = budget_bytes // max(1, block_bytes)
        try:
            self.tensor = torch.empty((self.blocks, block_bytes), dtype=torch.uint8)
        except RuntimeError as error:
            raise DoesNotFit(f"cannot allocate {format_bytes(budget_bytes)} of host memory: {error}") from error
        self._bytes = self.tensor.numpy()
        if is_pinned:
            self._pin()

    def _pin(self) -> None:
        """Pins the exact size: torch's own pinned memory is rounded up to a power of two, which may exceed the budget.
        NVIDIA's driver for Linux pins pages by itself and does not count them as locked: RLIMIT_MEMLOCK, 8 MiB as a
        rule, limits mlock() and not this, so it is not checked. The limit is the available memory (`check_budget`).
        """
        runtime, size = torch.cuda.cudart(), self.tensor.numel()  # type: ignore[no-untyped-call]
        code = int(runtime.cudaHostRegister(self.tensor.data_ptr(), size, 0)) if size else 0
        if code:
            raise DoesNotFit(f"cannot pin {format_bytes(size)} of host memory (CUDA error {code}): lower --host-memory")
        if size:
            weakref.finalize(self, runtime.cudaHostUnregister, self.tensor.data_ptr())

    def parts(self, blocks: Sequence[int], size_bytes: int) -> list[memoryview]:
        """A record's bytes, block after block."""
        each = self._bytes.shape[1]
        sizes = [min(each, size_bytes - place * each) for place in range(len(blocks))]
        return [memoryview(self._bytes[block])[:size] for block, size in zip(blocks, sizes, strict=True)]

    def blocks_of(self, parts: Sequence[memoryview]) -> list[int]:
        """The blocks that these parts begin; empty: they lie outside this memory."""
        begin, each, size = self._bytes.ctypes.data, self._bytes.shape[1], self._bytes.size
        offsets = [np.frombuffer(part, np.uint8).ctypes.data - begin for part in parts]
        return [offset // each for offset in offsets] if all(0 <= offset < size for offset in offsets) else []


def check_budget(budget_bytes: int, available_bytes: int, option: str) -> None:
    """Checks before anything is allocated: more host memory than available would cause swapping, or a kill."""
    if budget_bytes > available_bytes:
        raise DoesNotFit(
            f"{option} {format_bytes(budget_bytes)} is more than the {format_bytes(available_bytes)} of memory that "
            f"this machine, or the limit of its container, has available beside the pool: give at most that"
        )
