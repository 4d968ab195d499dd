"""Whole pages and new tokens: exactly the bytes that were asked for move, and no others."""

from __future__ import annotations

import pytest
import torch
from paged_case import DEVICE, Heads, Pages

from quire.plan.layout import GRANULE_BYTES
from quire.worker.kernels.pages import carry, clear_pages, copy_pages, gather_pages, scatter_pages, write
from quire.worker.kernels.shape import LayerViews

PAGE_GRANULES = 35
"""More than one program moves, and not a multiple of that."""
PAGE_BYTES = PAGE_GRANULES * GRANULE_BYTES


def arena_of(pages: int) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randint(256, (pages * PAGE_BYTES,), dtype=torch.uint8).to(DEVICE)


def addresses_of(*pages: int) -> torch.Tensor:
    return torch.tensor(pages, dtype=torch.int32, device=DEVICE) * PAGE_GRANULES


def test_copied_pages_are_equal_and_others_stay() -> None:
    arena = arena_of(6)
    expected = arena.clone().view(6, -1)
    expected[[4, 0]] = expected[[1, 5]]
    copy_pages(arena, addresses_of(1, 5), addresses_of(4, 0), PAGE_BYTES)
    assert torch.equal(arena.view(6, -1), expected)


def test_cleared_pages_are_zero_and_others_stay() -> None:
    arena = arena_of(5)
    expected = arena.clone().view(5, -1)
    expected[[3, 1]] = 0
    clear_pages(arena, addresses_of(3, 1), PAGE_BYTES)
    assert torch.equal(arena.view(5, -1), expected)


def test_no_pages_are_no_work() -> None:
    arena = arena_of(2)
    expected = arena.clone()
    clear_pages(arena, addresses_of(), PAGE_BYTES)
    assert torch.equal(arena, expected)


def test_pages_come_back_from_staging_to_other_places() -> None:
    arena, staging = arena_of(6), torch.zeros(3 * PAGE_BYTES, dtype=torch.uint8, device=DEVICE)
    expected = arena.clone().view(6, -1)
    gather_pages(arena, addresses_of(5, 0, 2), PAGE_BYTES, staging)
    assert torch.equal(staging.view(3, -1), expected[[5, 0, 2]])
    expected[[1, 3, 4]] = expected[[5, 0, 2]]
    scatter_pages(staging, arena, addresses_of(1, 3, 4), PAGE_BYTES)
    assert torch.equal(arena.view(6, -1), expected)


@pytest.mark.parametrize("words", [0, 1, 1023, 1024, 5000])
def test_words_are_carried_to_and_from_main_memory_and_nothing_behind_them(words: int) -> None:
    host = torch.arange(1, 6001, dtype=torch.int32, pin_memory=DEVICE.type == "cuda")
    device, back = torch.zeros(6000, dtype=torch.int32, device=DEVICE), torch.zeros_like(host)
    carry(device[:words], host[:words])
    assert device.tolist() == [*range(1, words + 1), *[0] * (6000 - words)]
    back = back.pin_memory() if DEVICE.type == "cuda" else back
    carry(back[:words].view(torch.uint8), device[:words].view(torch.uint8))
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    assert torch.equal(back, device.cpu())


@pytest.mark.parametrize(
    ("dtype", "heads", "columns"), [(torch.float32, Heads(), 3), (torch.bfloat16, Heads(3, 3, 24, 40), 0)]
)
def test_new_tokens_lie_where_the_table_says_and_nothing_else_changes(
    dtype: torch.dtype, heads: Heads, columns: int
) -> None:
    ends = [1, 37, 64]
    pages, expected = (Pages(ends, heads, 16, dtype, columns) for _ in range(2))
    expected.keys, expected.values = pages.keys, pages.values
    expected.fill()
    for first in range(0, 64, 16):
        chunk = [(row, position) for row, end in enumerate(ends) for position in range(first, min(end, first + 16))]
        rows, positions = (torch.tensor(column, device=DEVICE) for column in zip(*chunk, strict=True))
        keys = torch.stack([pages.keys[row][position] for row, position in chunk], dim=1).transpose(0, 1)
        values = torch.stack([pages.values[row][position] for row, position in chunk])
        write(keys, values, LayerViews(pages.key, pages.value), pages.table, rows, positions)
    torch.testing.assert_close(pages.arena, expected.arena, rtol=0, atol=0, equal_nan=True)
