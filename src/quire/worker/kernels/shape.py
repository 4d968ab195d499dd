"""What a kernel is compiled for, as plain frozen numbers, and tables on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTable:
    """Where the pages of rows lie, for one group of layers."""

    addresses: torch.Tensor
    """(row, column), int32, in granules."""
    page_tokens: int
    sink_columns: int
    wraps: bool
    """Columns after the sinks' are a ring: the kind gives pages back."""

    @property
    def ring_columns(self) -> int:
        return self.addresses.shape[1] - self.sink_columns if self.wraps else 0


@dataclass(frozen=True, slots=True, eq=False)
class LayerViews:
    """A layer's parts, as views (address, slot, head, number) of the arena."""

    key: torch.Tensor
    value: torch.Tensor
    rope: torch.Tensor | None = None
    """The rotary key of a latent, which is key and value at once."""
    key_scales: torch.Tensor | None = None
    value_scales: torch.Tensor | None = None
    """(head,): of keys and values in 8 bits."""
    row_scales: torch.Tensor | None = None
    """(address, slot, scale): of latents in 8 bits, stored after their numbers."""

    @classmethod
    def latent(cls, latent: torch.Tensor, rope: torch.Tensor, row_scales: torch.Tensor | None = None) -> LayerViews:
        return cls(latent, latent, rope, row_scales=row_scales)


@dataclass(frozen=True, slots=True)
class PartShape:
    """One part of a layer's memory. Strides count numbers."""

    granule: int
    """From one address to the next."""
    step: int
    """From one token of a page to the next."""
    head: int
    width: int
    padded: int
    """The width as a power of two."""
    is_quantised: bool = False
    """In 8 bits, each token with a scale for every 128 numbers; the fields below are strides of the scales."""
    scale_granule: int = 0
    scale_step: int = 0
    groups: int = 0

    @property
    def group_numbers(self) -> int:
        return min(128, self.padded)


@dataclass(frozen=True, slots=True)
class Shape:
    """What an attention kernel is compiled for."""

    keys: PartShape
    values: PartShape
    """Of a latent, the same: it is key and value at once."""
    ropes: PartShape
    """Rotary keys of latents; unused for other kinds."""
    is_latent: bool
    has_scales: bool
    """Keys and values are in 8 bits, with a scale for each head."""
    query_head: int
    """From one head of a query to the next."""
    page_tokens: int
    sink_columns: int
    ring_columns: int
    """Length of the ring of columns after the sinks'; 0: there is no ring."""
    group: int
    """Heads that share a key head; for a latent, which all heads share, the heads of one program."""
    rows: int
    """Rows of a tile: queries × group, padded."""
    window: int
    chunk: int
    sinks: int
    has_softcap: bool
    has_sink_logits: bool
    has_slopes: bool
    """Scores lose with distance, each head by its own slope (ALiBi)."""
    is_alike: bool
    """One query in each block: then it sees all tokens of its pieces."""
    writes: bool = False
    """Programs write a row's newest token themselves before they read it."""
    is_invariant: bool = False
    """Tiles begin at multiples of their length, whatever the first query of a block sees."""


@dataclass(frozen=True, slots=True)
class SlotShape:
    """For new tokens: fields as in `Shape`."""

    keys: PartShape
    values: PartShape
    page_tokens: int
    sink_columns: int
    ring_columns: int
    heads: int
    padded_heads: int
    has_scales: bool


@dataclass(frozen=True, slots=True)
class Tiles:
    """How one program is cut, and how the compiler runs it."""

    rows: int
    tokens: int
    warps: int
    stages: int
    programs: int
    """Programs that run on one processor at a time."""
    is_peeled: bool
    """Tiles that all queries of a block see entirely need no mask."""


def pad(number: int, least: int = 16) -> int:
    """The next power of two; matrix units take at least 16."""
    return max(least, 1 << (number - 1).bit_length())


def part_shape(part: torch.Tensor, row_scales: torch.Tensor | None = None) -> PartShape:
    """Of a view (address, slot, head, number); with `row_scales`, numbers and the scales of each token after them."""
    granule, step, head, _ = part.stride()
    if row_scales is None:
        return PartShape(granule, step, head, part.shape[3], pad(part.shape[3]))
    scale_granule, scale_step, _ = row_scales.stride()
    groups = row_scales.shape[2]
    width = part.shape[3] - groups * row_scales.element_size()
    return PartShape(granule, step, head, width, pad(width), True, scale_granule, scale_step, groups)
