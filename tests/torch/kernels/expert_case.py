"""Experts in fp32, one after the other, for comparison with kernels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

Activation = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def silu(gates: torch.Tensor, ups: torch.Tensor) -> torch.Tensor:
    return functional.silu(gates) * ups


def clamped(gates: torch.Tensor, ups: torch.Tensor) -> torch.Tensor:
    """As gpt-oss has it."""
    gates, ups = gates.clamp(max=7.0), ups.clamp(-7.0, 7.0)
    return gates * torch.sigmoid(1.702 * gates) * (ups + 1)


def gelu(gates: torch.Tensor, ups: torch.Tensor) -> torch.Tensor:
    return functional.gelu(gates, approximate="tanh") * ups


def one_by_one(
    tokens: torch.Tensor,
    choice: tuple[torch.Tensor, torch.Tensor],
    weights: tuple[torch.Tensor, torch.Tensor],
    biases: tuple[torch.Tensor, torch.Tensor] | None,
    activation: tuple[Activation, bool],
) -> torch.Tensor:
    """Weights (expert, out, in); `activation`: and whether gate and up lie in turns. (token, chosen, out)."""
    (up, down), (join, is_interleaved) = (one.float() for one in weights), activation
    chosen, shares = choice
    out = torch.zeros(*chosen.shape, down.shape[1], device=tokens.device)
    for expert in range(len(up)):
        token, turn = torch.where(chosen == expert)
        halves = tokens[token].float() @ up[expert].T + (0 if biases is None else biases[0][expert].float())
        gates, ups = (halves[:, ::2], halves[:, 1::2]) if is_interleaved else halves.chunk(2, dim=-1)
        found = join(gates, ups) @ down[expert].T + (0 if biases is None else biases[1][expert].float())
        out[token, turn] = found * shares[token, turn, None].float()
    return out
