"""What the ranks of one stage do together while they run a model: the port that a split model calls.

    add      every rank's tensor becomes the sum of all     after products of which each rank has a part
    gather   rank 0 gets all parts, side by side            logits, of which each rank has a part of the vocabulary

All ranks make the same calls in the same order, with tensors of the same shape.
"""

from __future__ import annotations

from typing import Protocol

import torch


class Collective(Protocol):
    @property
    def rank(self) -> int: ...

    @property
    def ranks(self) -> int: ...

    def add(self, tensor: torch.Tensor) -> None:
        """Sums a contiguous tensor over all ranks, in place."""

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """On rank 0 all parts, joined along the last axis in the order of ranks; elsewhere the rank's own part."""

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Fills a contiguous tensor with rank 0's, in place."""


class Alone:
    """One rank has everything."""

    rank, ranks = 0, 1

    def add(self, tensor: torch.Tensor) -> None: ...

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def broadcast(self, tensor: torch.Tensor) -> None: ...


ALONE: Collective = Alone()
