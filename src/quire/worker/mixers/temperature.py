"""Queries scaled by their positions, so that attention over long sequences stays sharp (Llama 4)."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Temperature:
    """Queries of long sequences are scaled up: log(1 + floor((position + 1) / floor_tokens)) · strength + 1."""

    strength: float
    floor_tokens: float

    def scale(self, query: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """(token, head, width) of tokens at these positions."""
        steps = torch.floor((positions.float() + 1.0) / self.floor_tokens)
        factors = torch.log1p(steps) * self.strength + 1.0
        return (query * factors[:, None, None]).to(query.dtype)
