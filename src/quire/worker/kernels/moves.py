"""`PageMoves` on Quire's own kernels."""

from __future__ import annotations

import torch

from quire.worker.kernels.pages import clear_pages, copy_pages, gather_pages, scatter_pages


class KernelMoves:
    """Moves whole pages by Triton kernels."""

    def copy(self, arena: torch.Tensor, source: torch.Tensor, target: torch.Tensor, page_bytes: int) -> None:
        copy_pages(arena, source, target, page_bytes)

    def clear(self, arena: torch.Tensor, addresses: torch.Tensor, page_bytes: int) -> None:
        clear_pages(arena, addresses, page_bytes)

    def gather(self, arena: torch.Tensor, addresses: torch.Tensor, page_bytes: int) -> torch.Tensor:
        pages = torch.empty(len(addresses), page_bytes, dtype=torch.uint8, device=arena.device)
        gather_pages(arena, addresses, page_bytes, pages)
        return pages

    def scatter(self, pages: torch.Tensor, arena: torch.Tensor, addresses: torch.Tensor, page_bytes: int) -> None:
        scatter_pages(pages.contiguous(), arena, addresses, page_bytes)
