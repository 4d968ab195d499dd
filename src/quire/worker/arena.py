"""One tensor of bytes for all pages, and views of it for every layer, cut as the plan's manifest says.

    arena   ├────── sheet ──────┼────── sheet ──────┼ …        addresses count granules of 256 bytes
    page         ├ layer 0 key ┼ layer 0 value ┼ layer 4 key ┼ … ┤
    view    (address, token in page, head, number), for one part of one layer

A view's rows overlap in memory, one begins at every granule; addresses of pages are the only ones ever used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from quire.plan.layout import GRANULE_BYTES, Entry
from quire.plan.plan import StagePlan

DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp8": torch.float8_e4m3fn,
    "int8": torch.int8,
}


@dataclass(frozen=True, slots=True, eq=False)
class PartView:
    """One part of one layer's memory, in all pages: (address, unit of the page, head, number)."""

    kind: int
    group: int
    tensor: torch.Tensor

    def pages(self, addresses: torch.Tensor) -> torch.Tensor:
        """Copies of whole pages: (page, unit, head, number)."""
        places, *page = self.tensor.shape
        flat = self.tensor.as_strided((places, math.prod(page)), (self.tensor.stride(0), 1))
        return flat.index_select(0, addresses).view(-1, *page)


class Arena:
    def __init__(self, stage: StagePlan, device: torch.device) -> None:
        self.stage = stage
        self.bytes = torch.empty(stage.pool_bytes, dtype=torch.uint8, device=device)
        self.layers: dict[int, dict[str, PartView]] = {}
        """By layer, by the part's name."""
        for kind, plan in enumerate(stage.kinds):
            for entry in plan.manifest:
                self.layers.setdefault(entry.layer, {})[entry.part] = PartView(kind, entry.group, self._view(entry))
        for layer, source in stage.aliases:
            self.layers[layer] = self.layers[source]

    def _view(self, entry: Entry) -> torch.Tensor:
        dtype = DTYPES[entry.dtype]
        numbers = self.bytes.view(dtype)
        step, row = GRANULE_BYTES // dtype.itemsize, entry.row_bytes // dtype.itemsize
        size = entry.units * entry.heads * row
        begin = entry.offset_bytes // dtype.itemsize
        places = max(0, (numbers.numel() - begin - size) // step + 1)
        return numbers.as_strided((places, entry.units, entry.heads, row), (step, entry.heads * row, row, 1), begin)

    def copy(self, kind: int, source: np.ndarray, target: np.ndarray) -> None:
        """Whole pages, from their old places to new ones; no page is both."""
        pages = self._pages(kind)
        pages[self._places(kind, target)] = pages[self._places(kind, source)]

    def clear(self, kind: int, pages: np.ndarray) -> None:
        self._pages(kind)[self._places(kind, pages)] = 0

    def _places(self, kind: int, pages: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(self.stage.addresses(kind, pages).astype(np.int64)).to(self.bytes.device)

    def _pages(self, kind: int) -> torch.Tensor:
        size = self.stage.kinds[kind].page_bytes
        places = (self.bytes.numel() - size) // GRANULE_BYTES + 1
        return self.bytes.as_strided((places, size), (GRANULE_BYTES, 1))
