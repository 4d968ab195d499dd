"""Weights of linear layers on a CPU, laid out for batches of few tokens.

    torch    out × in    a row for each output
    here     in × out    a row for each input, seen through a transposed view: shape and numbers are the same

With few tokens a product costs what reading the weight costs, and rows of outputs are read in the order in which they
are multiplied. Rows of a multiple of 2 KiB would crowd into a few sets of the cache: they get one cache line more.
"""

from __future__ import annotations

import torch
from torch import nn

LINE_BYTES = 64
CROWDED_BYTES = 2048


def lay_out(model: nn.Module) -> int:
    """How many weights were laid out anew. Weights that an embedding reads row by row too stay as they are."""
    shared = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    linears = [module for module in model.modules() if type(module) is nn.Linear and _gains(module.weight)]
    chosen = {id(linear.weight): linear.weight for linear in linears if id(linear.weight) not in shared}
    for weight in chosen.values():
        weight.data = _by_inputs(weight.data)
    return len(chosen)


def _gains(weight: torch.Tensor) -> bool:
    """Products in other precisions go through other code, which lays weights out for itself."""
    return weight.device.type == "cpu" and weight.dtype is torch.float32


def _by_inputs(weight: torch.Tensor) -> torch.Tensor:
    outputs, inputs = weight.shape
    crowded = outputs * weight.itemsize % CROWDED_BYTES == 0
    rows = weight.new_empty(inputs, outputs + (LINE_BYTES // weight.itemsize if crowded else 0))
    rows[:, :outputs] = weight.T
    return rows[:, :outputs].T
