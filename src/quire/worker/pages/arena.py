"""One tensor of bytes for all pages, and views of it for every layer, cut as the plan's manifest says.

    arena   ├────── sheet ──────┼────── sheet ──────┼ …        addresses count granules of 256 bytes
    page         ├ layer 0 key ┼ layer 0 value ┼ layer 4 key ┼ … ┤
    view    (address, token in page, head, number), for one part of one layer
    rows    (place, head × number): the same, token by token

A view has a page at every granule, so its pages overlap in memory; only addresses of real pages are ever used. Rows
overlap in the same way: one begins wherever a token of some page might.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from math import gcd

import numpy as np
import torch

from quire.plan.layout import GRANULE_BYTES, Entry
from quire.plan.plan import StagePlan
from quire.worker.pages.moves import PageMoves, TorchMoves
from quire.worker.pages.uploads import DirectUpload

DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp8": torch.float8_e4m3fn,
    "int8": torch.int8,
}


@dataclass(frozen=True, slots=True)
class Cut:
    """How the tokens of a group lie in the arena. Parts with equal cuts have their tokens at the same places."""

    group: int
    unit_bytes: int

    @property
    def step_bytes(self) -> int:
        """Bytes from one place to the next."""
        return gcd(GRANULE_BYTES, self.unit_bytes)

    def places(self, addresses: np.ndarray, units: np.ndarray) -> np.ndarray:
        """Places of tokens, from the addresses of their pages and their units in the page."""
        places: np.ndarray = (addresses * GRANULE_BYTES + units * self.unit_bytes) // self.step_bytes
        return places


@dataclass(frozen=True, slots=True, eq=False)
class PartView:
    """One part of one layer's memory, in all pages: (address, unit of the page, head, number)."""

    kind: int
    cut: Cut
    tensor: torch.Tensor
    rows: torch.Tensor
    """(place, head × number): `cut` says at which place a token is."""
    scales: torch.Tensor | None = None
    """(head,): the factor of stored keys and values in 8 bits. Latents have theirs in their rows."""

    @property
    def group(self) -> int:
        return self.cut.group

    def pages(self, addresses: torch.Tensor) -> torch.Tensor:
        """Copies of whole pages: (page, unit, head, number)."""
        places, *page = self.tensor.shape
        flat = self.tensor.as_strided((places, math.prod(page)), (self.tensor.stride(0), 1))
        return flat.index_select(0, addresses).view(-1, *page)


def cut_of(entry: Entry) -> Cut:
    return Cut(entry.group, entry.heads * entry.row_bytes)


def _overlapping_blocks(numbers: torch.Tensor, step: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Dense blocks of a shape, one at every `step` numbers."""
    places = max(0, (numbers.numel() - math.prod(shape)) // step + 1)
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return numbers.as_strided((places, *shape), (step, *strides), numbers.storage_offset())


class Arena:
    """All pages of a stage on one device, and the operations on whole pages."""

    def __init__(
        self,
        stage: StagePlan,
        device: torch.device,
        shared: torch.Tensor | None = None,
        *,
        moves: PageMoves | None = None,
        spare: int = 0,
    ) -> None:
        """`shared`: the bytes of another arena, for a model whose layers lie in the same pages. `moves`: moves whole
        pages; default: torch. `spare`: sheets after the pool that the allocator does not know."""
        self.stage = stage
        size = stage.pool_bytes + spare * stage.sheet_bytes
        self.bytes = torch.empty(size, dtype=torch.uint8, device=device) if shared is None else shared
        if spare:
            self.bytes[stage.pool_bytes :].zero_()
        self._moves, self.upload = moves or TorchMoves(), DirectUpload(device)
        self.layers: dict[int, dict[str, PartView]] = {}
        """By layer, by the part's name."""
        for kind, plan in enumerate(stage.kinds):
            for entry in plan.manifest:
                self.layers.setdefault(entry.layer, {})[entry.part] = self._part(kind, entry)
        for layer, source in stage.aliases:
            self.layers[layer] = self.layers[source]

    def _part(self, kind: int, entry: Entry) -> PartView:
        dtype = DTYPES[entry.dtype]
        cut = cut_of(entry)
        numbers = self.bytes.view(dtype)[entry.offset_bytes // dtype.itemsize :]
        row = entry.row_bytes // dtype.itemsize
        page = _overlapping_blocks(numbers, GRANULE_BYTES // dtype.itemsize, (entry.units, entry.heads, row))
        rows = _overlapping_blocks(numbers, cut.step_bytes // dtype.itemsize, (entry.heads * row,))
        has_scales = dtype == DTYPES["fp8"] and entry.part in ("key", "value")
        return PartView(kind, cut, page, rows, torch.ones(entry.heads, device=numbers.device) if has_scales else None)

    @property
    def spare_address(self) -> int:
        """Address of the first spare sheet: a page of any kind fits there."""
        assert self.bytes.numel() > self.stage.pool_bytes, "the arena was made without a spare sheet"
        return self.stage.pool_bytes // GRANULE_BYTES

    def copy(self, kind: int, source: np.ndarray, target: np.ndarray) -> None:
        """Copies whole pages, by number. No page is both source and target."""
        origin, goal = self._places(kind, source), self._places(kind, target)
        self._moves.copy(self.bytes, origin, goal, self._size(kind))

    def repeat(self, kind: int, source: np.ndarray, target: np.ndarray) -> None:
        """Copies whole pages, by address. No page is both source and target."""
        origin, goal = (self.upload(addresses.astype(np.int32)) for addresses in (source, target))
        self._moves.copy(self.bytes, origin, goal, self._size(kind))

    def read(self, kind: int, pages: np.ndarray) -> torch.Tensor:
        """Copies of whole pages: (page, byte)."""
        return self._moves.gather(self.bytes, self._places(kind, pages), self._size(kind))

    def write(self, kind: int, addresses: np.ndarray, data: torch.Tensor) -> None:
        """Writes whole pages (page, byte) to these addresses."""
        places = self.upload(addresses.astype(np.int32))
        self._moves.scatter(data.to(self.bytes.device), self.bytes, places, self._size(kind))

    def clear(self, kind: int, pages: np.ndarray) -> None:
        self._moves.clear(self.bytes, self._places(kind, pages), self._size(kind))

    def _places(self, kind: int, pages: np.ndarray) -> torch.Tensor:
        return self.upload(self.stage.addresses(kind, pages))

    def _size(self, kind: int) -> int:
        return self.stage.kinds[kind].page_bytes
