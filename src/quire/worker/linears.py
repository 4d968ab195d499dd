"""Weights of linear layers on a CPU, laid out for batches of few tokens.

    torch    out × in    a row for each output
    here     in × out    a row for each input, seen through a transposed view: shape and numbers are the same

With few tokens a product costs what reading the weight costs, and rows of outputs are read in the order in which they
are multiplied. Rows of a multiple of 2 KiB would crowd into a few sets of the cache: they get one cache line more.
Both are counted when the plan is made (`core/laid_out.py`).

A head over a vocabulary is too wide for that: it is cut into panels of 256 outputs, each dense, read one after another.
Where it is tied to an embedding, which is read row by row, the panels are a copy.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn import functional

from quire.core.laid_out import LINE_BYTES, PANEL_OUTPUTS, is_crowded
from quire.core.laid_out import panels as panels_of

PANEL_TOKENS = 64
"""With more tokens than this, panels gain nothing, and gathering what they put out costs."""


def lay_out(model: nn.Module) -> int:
    """How many weights were laid out anew. Weights that an embedding reads row by row too stay as they are, beside
    panels."""
    shared = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    linears = [module for module in model.modules() if type(module) is nn.Linear and _gains(module.weight)]
    chosen = {id(linear.weight): linear.weight for linear in linears if id(linear.weight) not in shared}
    for weight in chosen.values():
        weight.data = _by_inputs(weight.data)
    for linear in linears:
        if id(linear.weight) in shared:
            panels = _panels(linear.weight.detach())
            linear.register_buffer("panels", panels, persistent=False)
            linear.forward = partial(_by_panels, linear, panels)  # type: ignore[method-assign]
    return len(chosen)


def _panels(weight: torch.Tensor) -> torch.Tensor:
    """(panel, in, out): the last one is filled up with zeros."""
    outputs, inputs = weight.shape
    panels = weight.new_zeros(panels_of(outputs), inputs, PANEL_OUTPUTS)
    for number, panel in enumerate(panels):
        rows = weight[number * PANEL_OUTPUTS : (number + 1) * PANEL_OUTPUTS]
        panel[:, : len(rows)] = rows.T
    return panels


def _by_panels(linear: nn.Linear, panels: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    few = x.flatten(0, -2)
    if len(few) > PANEL_TOKENS:
        return functional.linear(x, linear.weight, linear.bias)
    out = torch.bmm(few.expand(len(panels), *few.shape), panels).transpose(0, 1).flatten(1)[:, : linear.out_features]
    out = out if linear.bias is None else out + linear.bias
    return out.view(*x.shape[:-1], linear.out_features)


def _gains(weight: torch.Tensor) -> bool:
    """Products in other precisions go through other code, which lays weights out for itself."""
    return weight.device.type == "cpu" and weight.dtype is torch.float32


def _by_inputs(weight: torch.Tensor) -> torch.Tensor:
    outputs, inputs = weight.shape
    rows = weight.new_empty(inputs, outputs + (LINE_BYTES // weight.itemsize if is_crowded(outputs) else 0))
    rows[:, :outputs] = weight.T
    return rows[:, :outputs].T
