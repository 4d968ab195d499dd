"""Weights of linear layers on a CPU, laid out for batches of few tokens.

    torch    out × in                    a row for each output
    rows     in × out                    a row for each input, seen through a transposed view
    panels   number × in × out/number    the same for some outputs after others: each panel is dense

With few tokens a product costs what reading the weight costs. Panels are read from end to end, in the order in which
they are multiplied; rows serve where outputs are few, or cannot be cut into equal panels. Products of the same tokens
are one (`fused.py`). What that takes is counted when the plan is made (`core/laid_out.py`).

A head that is tied to an embedding, which is read row by row, has panels as a copy. Where a model reads the weight of
a linear layer itself, it finds it as torch shows it, in rows.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from quire.core.laid_out import panels as panels_of
from quire.core.units import ceil_div
from quire.worker.fused import Share, fuse, is_gated

FEW_TOKENS = 128
"""With more tokens than this, putting panels' outputs side by side costs more than multiplying them one by one."""


class InPanels(nn.Module):
    panels: torch.Tensor
    """(panel, in, out)"""

    @property
    def weight(self) -> torch.Tensor:
        """Whoever reads it will do so again: it lies in rows from now on."""
        return _in_rows(self)


class Panelled(InPanels, nn.Linear):  # type: ignore[override]
    """Stands in for a linear layer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _by_panels(self.panels, self.out_features, self.bias, x)


class PanelledShare(InPanels, Share):  # type: ignore[misc]
    """Stands in for linear layers that are one product."""

    def multiply(self, tokens: torch.Tensor) -> torch.Tensor:
        return _by_panels(self.panels, len(self.panels) * self.panels.shape[-1], self.bias, tokens)


class GatedInPlace(nn.Module):
    """Stands in for an MLP of transformers: silu(gate) × up, then down. The halves are joined where they lie: with many
    tokens, memory that is asked for anew costs as much as joining them."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_proj(tokens), self.up_proj(tokens)  # type: ignore[operator]
        found: torch.Tensor = self.down_proj(functional.silu(gate, inplace=True).mul_(up))  # type: ignore[operator]
        return found


ROWS: dict[type[nn.Module], type[nn.Module]] = {Panelled: nn.Linear, PanelledShare: Share}
PANELS = {rows: panels for panels, rows in ROWS.items()}


def lay_out(model: nn.Module) -> int:
    """How many weights were laid out anew, beside heads that got a copy."""
    if _gains(next(model.parameters())):
        _join(model)
    embedded = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    owners: dict[int, list[Any]] = {}
    for module in model.modules():
        if type(module) in PANELS and _gains(module.weight):  # type: ignore[arg-type]
            owners.setdefault(id(module.weight), []).append(module)
    for key, modules in owners.items():
        weight = modules[0].weight.detach()
        if key in embedded:
            _copy(modules, _panels(weight))
        elif len(weight) % panels_of(len(weight)) or panels_of(len(weight)) == 1:
            modules[0].weight.data = weight.T.contiguous().T
        else:
            _move(modules, _panels(weight))
    return len(owners.keys() - embedded)


def _join(model: nn.Module) -> None:
    """What reads the same tokens is one product; the halves of a gated MLP are joined in place."""
    fuse(model)
    for module in [module for module in model.modules() if is_gated(module)]:
        module.__class__ = GatedInPlace


def _copy(heads: list[Any], panels: torch.Tensor) -> None:
    for head in heads:
        head.register_buffer("panels", panels, persistent=False)
        head.forward = partial(_by_head, head, panels)


def _move(modules: list[Any], panels: torch.Tensor) -> None:
    for module in modules:
        del module.weight
        module.register_buffer("panels", panels, persistent=False)
        module.__class__ = PANELS[type(module)]


def _in_rows(module: Any) -> torch.Tensor:
    weight: torch.Tensor = module.panels.transpose(0, 1).flatten(1).T
    del module.panels
    module.__class__ = ROWS[type(module)]
    module.weight = nn.Parameter(weight, requires_grad=False)
    return weight


def _by_head(linear: nn.Linear, panels: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    if x.shape[:-1].numel() > FEW_TOKENS:
        return functional.linear(x, linear.weight, linear.bias)
    return _by_panels(panels, linear.out_features, linear.bias, x)


def _by_panels(panels: torch.Tensor, outputs: int, bias: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
    out = _multiply(x.reshape(-1, x.shape[-1]), panels)[:, :outputs]
    out = out if bias is None else out + bias
    return out.view(*x.shape[:-1], outputs)


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
