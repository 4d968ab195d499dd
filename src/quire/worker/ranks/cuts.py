"""Where a rank's part of a parameter lies in the whole one.

q_proj     [ rank 0 | rank 1 ]                        one range
qkv_proj   [ q0 q1 | k0 k1 | v0 v1 ]  rank 0: q0 k0 v0       a range of each packed part
k_proj     [ head 0 | head 1 ]        of 4 ranks, 0 and 1 have head 0: parts that are fewer than ranks are copied
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from quire.core.units import ceil_div

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Cut:
    axis: int
    ranges: tuple[Range, ...]
    """[begin, end) along the axis, in order."""
    missing: int = 0
    """Zeros after them: the last rank of a vocabulary has fewer tokens."""

    @property
    def size(self) -> int:
        return sum(end - begin for begin, end in self.ranges) + self.missing

    def of(self, tensor: Any) -> torch.Tensor:
        """Of a tensor, or of a stored one, which reads only what is asked for. Never a view."""
        before = (slice(None),) * self.axis
        parts = [tensor[(*before, slice(begin, end))] for begin, end in self.ranges]
        if self.missing:
            shape = list(parts[0].shape)
            shape[self.axis] = self.missing
            parts.append(parts[0].new_zeros(shape))
        return torch.cat(parts, dim=self.axis) if len(parts) > 1 else own_memory(parts[0], tensor)


def own_memory(part: torch.Tensor, whole: Any) -> torch.Tensor:
    """A copy, if it is a view. What is read from a file is none."""
    return part.clone() if isinstance(whole, torch.Tensor) else part


def cut_parts(axis: int, whole: Sequence[int], local: Sequence[int], rank: int, ranks: int) -> Cut | None:
    """Of a dimension that consists of parts with these sizes. None: they cannot be cut so."""
    ranges, begin = [], 0
    if len(whole) != len(local):
        return None
    for size, own in zip(whole, local, strict=True):
        if not own or size % own or ranks % (size // own):
            return None
        first = begin + rank * (size // own) // ranks * own
        ranges.append((first, first + own))
        begin += size
    return Cut(axis, _joined(ranges))


def cut_vocabulary(tokens: int, rank: int, ranks: int) -> Cut:
    """Equal parts of the rows of an embedding; the last ones may be filled up with zeros."""
    own = ceil_div(tokens, ranks)
    begin, end = min(rank * own, tokens), min((rank + 1) * own, tokens)
    return Cut(0, ((begin, end),), own - (end - begin))


def _joined(ranges: Sequence[Range]) -> tuple[Range, ...]:
    found: list[Range] = []
    for begin, end in ranges:
        if found and found[-1][1] == begin:
            begin = found.pop()[0]
        found.append((begin, end))
    return tuple(found)
