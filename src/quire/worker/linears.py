"""Weights of linear layers on a CPU, laid out for batches of few tokens.

    torch    out × in                    a row for each output
    rows     in × out                    a row for each input, seen through a transposed view
    panels   number × in × out/number    the same for some outputs after others: each panel is dense

With few tokens a product costs what reading the weight costs. Panels are read from end to end, in the order in which
they are multiplied; rows serve where outputs are few, or cannot be cut into equal panels. What that takes is counted
when the plan is made (`core/laid_out.py`).

A head that is tied to an embedding, which is read row by row, has panels as a copy. Where a model reads the weight of
a linear layer itself, it finds it as torch shows it, in rows.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn import functional

from quire.core.laid_out import panels as panels_of
from quire.core.units import ceil_div

FEW_TOKENS = 128
"""With more tokens than this, putting panels' outputs side by side costs more than multiplying them one by one."""


class Panelled(nn.Linear):
    """Stands in for a linear layer whose weight lies in panels."""

    panels: torch.Tensor
    """(panel, in, out)"""

    @property
    def weight(self) -> torch.Tensor:  # type: ignore[override]
        """Whoever reads it will do so again: it lies in rows from now on."""
        return _in_rows(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _by_panels(self, self.panels, x)


def lay_out(model: nn.Module) -> int:
    """How many weights were laid out anew, beside heads that got a copy."""
    embedded = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    owners: dict[int, list[nn.Linear]] = {}
    for module in model.modules():
        if type(module) is nn.Linear and _gains(module.weight):
            owners.setdefault(id(module.weight), []).append(module)
    for key, linears in owners.items():
        first, outputs = linears[0].weight, linears[0].out_features
        if key not in embedded and (panels_of(outputs) == 1 or outputs % panels_of(outputs)):
            first.data = first.data.T.contiguous().T
            continue
        panels = _panels(first.detach())
        for linear in linears:
            linear.register_buffer("panels", panels, persistent=False)
            if key in embedded:
                linear.forward = partial(_by_head, linear, panels)  # type: ignore[method-assign]
            else:
                del linear.weight
                linear.__class__ = Panelled
    return len(owners.keys() - embedded)


def _in_rows(linear: nn.Linear) -> torch.Tensor:
    weight = linear.get_buffer("panels").transpose(0, 1).flatten(1).T
    del linear.panels
    linear.__class__ = nn.Linear
    linear.weight = nn.Parameter(weight, requires_grad=False)
    return linear.weight


def _by_head(linear: nn.Linear, panels: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    if x.shape[:-1].numel() > FEW_TOKENS:
        return functional.linear(x, linear.weight, linear.bias)
    return _by_panels(linear, panels, x)


def _by_panels(linear: nn.Linear, panels: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    out = _multiply(x.reshape(-1, linear.in_features), panels)[:, : linear.out_features]
    out = out if linear.bias is None else out + linear.bias
    return out.view(*x.shape[:-1], linear.out_features)


def _multiply(tokens: torch.Tensor, panels: torch.Tensor) -> torch.Tensor:
    """(token, in) by (panel, in, out) into (token, out)."""
    number, _, width = panels.shape
    asked = tokens.expand(number, *tokens.shape)
    if len(tokens) <= FEW_TOKENS:
        return torch.bmm(asked, panels).transpose(0, 1).flatten(1)
    out = tokens.new_empty(len(tokens), number, width)
    torch.bmm(asked, panels, out=out.transpose(0, 1))
    return out.flatten(1)


def _panels(weight: torch.Tensor) -> torch.Tensor:
    """The last one is filled up with zeros."""
    outputs, inputs = weight.shape
    number = panels_of(outputs)
    width = ceil_div(outputs, number)
    panels = weight.new_zeros(number, inputs, width)
    for place, panel in enumerate(panels):
        rows = weight[place * width : (place + 1) * width]
        panel[:, : len(rows)] = rows.T
    return panels


def _gains(weight: torch.Tensor) -> bool:
    """Products in other precisions go through other code, which lays weights out for itself."""
    return weight.device.type == "cpu" and weight.dtype is torch.float32
