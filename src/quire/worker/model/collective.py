"""What the ranks of one stage do together while they run a model: the port that a split model calls.

    add      every rank's tensor becomes the sum of all     after products of which each rank has a part
    gather   rank 0 gets all parts, side by side            logits, of which each rank has a part of the vocabulary

All ranks make the same calls in the same order, with tensors of the same shape. Stages have a port of their own:

    send, receive   hidden states go from a stage to the next, logits from the last to the first
    expect          logits that come later: the first stage begins the next step meanwhile
"""

from __future__ import annotations

from collections.abc import Callable
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


class Line(Protocol):
    """Connects a rank with the same rank of other stages."""

    def send(self, tensor: torch.Tensor, stage: int) -> None:
        """Sends a contiguous tensor; returns when it may be changed. On a CPU it does not wait for the other stage."""

    def receive(self, tensor: torch.Tensor, stage: int) -> None:
        """Fills a contiguous tensor with the one that the stage sends next."""

    def expect(self, tensor: torch.Tensor, stage: int) -> Callable[[], object]:
        """The same, in two parts: the tensor is filled when what this returns has been called."""


class NoLine:
    """One stage has all layers."""

    def send(self, tensor: torch.Tensor, stage: int) -> None:
        raise AssertionError(f"stage {stage} takes no tensor of {tensor.numel():,} numbers: there is one")

    def expect(self, tensor: torch.Tensor, stage: int) -> Callable[[], object]:
        raise AssertionError(f"stage {stage} sends no tensor of {tensor.numel():,} numbers: there is one")

    receive = send


NO_LINE: Line = NoLine()
