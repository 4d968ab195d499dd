"""The port between recurrent layers and a backend that computes them on packed tokens and state pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from quire.worker.backends.batch import KindBatch
from quire.worker.pages.arena import PartView


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """What a layer's convolution keeps: its last inputs, channel by channel."""

    pages: torch.Tensor
    """The arena, as numbers of the columns' dtype."""
    offsets: torch.Tensor
    """(channel,): where its columns begin in a page, in numbers."""
    group: int
    granule: int
    """Numbers from one address to the next."""


@dataclass(frozen=True, slots=True, eq=False)
class Matrices:
    """A layer's recurrent matrix, one for each head."""

    part: PartView
    keys_first: bool
    """Whether a matrix lies as (key, value) or as (value, key)."""


@dataclass(frozen=True, slots=True, eq=False)
class Recurrence:
    """Packed tokens. For each head, with a correction if there is a delta rule:

    S ← exp(decay) · S + key ⊗ weight · (value − correction)      result = scale · Sᵀ query + skip · value
    """

    query: torch.Tensor
    key: torch.Tensor
    """(token, head, number): as many heads as values, or fewer, shared by several values."""
    value: torch.Tensor
    decay: torch.Tensor
    """(token, head) or (token, head, number of the key): a logarithm."""
    weight: torch.Tensor
    """(token, head)"""
    scale: float
    skip: torch.Tensor | None
    """(head,)"""
    has_delta: bool
    is_normalised: bool
    """Queries and keys are normalised to length 1 first."""


@runtime_checkable
class Recurrent(Protocol):
    """A backend that computes recurrent layers."""

    def convolve(
        self,
        kind: KindBatch,
        columns: Columns,
        inputs: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        has_silu: bool,
    ) -> torch.Tensor:
        """(token, channel) in, the same out; `weight` is (channel, tap)."""
        ...

    def recur(self, kind: KindBatch, matrices: Matrices, tokens: Recurrence) -> torch.Tensor:
        """(token, head, value)"""
        ...
