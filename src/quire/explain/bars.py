"""Bars of blocks, in proportion to sizes."""

from __future__ import annotations

from collections.abc import Sequence


def cells(sizes: Sequence[int], width: int) -> list[int]:
    """`width` cells shared out in proportion: at least one for each part that is there, so that the legend names
    nothing that is not drawn; then to those that are furthest below their share."""
    total = sum(sizes) or 1
    counts = [min(size, 1) for size in sizes]
    for _ in range(width - sum(counts)):
        short = [size * width / total - count for size, count in zip(sizes, counts, strict=True)]
        counts[short.index(max(short))] += 1
    return counts
