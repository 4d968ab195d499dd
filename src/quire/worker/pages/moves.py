"""Moves of whole pages within the arena, and between it and other memory of the device. Addresses count granules."""

from __future__ import annotations

from typing import Protocol

import torch

from quire.plan.layout import GRANULE_BYTES


class PageMoves(Protocol):
    """Moves whole pages."""

    def copy(self, arena: torch.Tensor, source: torch.Tensor, target: torch.Tensor, page_bytes: int) -> None:
        """No page is both source and target."""
        ...

    def clear(self, arena: torch.Tensor, addresses: torch.Tensor, page_bytes: int) -> None: ...

    def gather(self, arena: torch.Tensor, addresses: torch.Tensor, page_bytes: int) -> torch.Tensor:
        """Copies of pages: (page, byte)."""
        ...

    def scatter(self, pages: torch.Tensor, arena: torch.Tensor, addresses: torch.Tensor, page_bytes: int) -> None: ...


class TorchMoves:
    """By indexing, on any device."""

    def copy(self, arena: torch.Tensor, source: torch.Tensor, target: torch.Tensor, page_bytes: int) -> None:
        pages = _pages(arena, page_bytes)
        pages[target.long()] = pages[source.long()]

    def clear(self, arena: torch.Tensor, addresses: torch.Tensor, page_bytes: int) -> None:
        _pages(arena, page_bytes)[addresses.long()] = 0

    def gather(self, arena: torch.Tensor, addresses: torch.Tensor, page_bytes: int) -> torch.Tensor:
        return _pages(arena, page_bytes).index_select(0, addresses.long())

    def scatter(self, pages: torch.Tensor, arena: torch.Tensor, addresses: torch.Tensor, page_bytes: int) -> None:
        _pages(arena, page_bytes)[addresses.long()] = pages


def _pages(arena: torch.Tensor, page_bytes: int) -> torch.Tensor:
    """(address, byte): a page begins at every granule."""
    places = (arena.numel() - page_bytes) // GRANULE_BYTES + 1
    return arena.as_strided((places, page_bytes), (GRANULE_BYTES, 1))
