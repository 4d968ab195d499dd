"""Weights of linear layers on a CPU, laid out for batches of few tokens.

    torch    out × in                    a row for each output
    rows     in × out                    a row for each input, seen through a transposed view
    panels   number × in × out/number    the same, for one part of the outputs after another: each panel is dense

With few tokens a product costs as much as reading the weight. Panels are read from end to end, in the order in which
they are multiplied; rows are used where outputs are few or cannot be cut into equal panels. Products of the same tokens
are fused (`fused.py`). The plan counts the memory for this (`models/weight_layout.py`).

A head that is tied to an embedding, which is read row by row, has its panels as a copy. A model that reads the weight
of a linear layer itself gets it in torch's layout, as rows.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from quire.core.units import ceil_div
from quire.models.weight_layout import panels as panels_of
from quire.worker.model.fused import FusedProduct, fuse, is_gated
from quire.worker.model.packed_cpu import lay_out_packed

FEW_TOKENS = 128
"""With more tokens than this, concatenating the panels' outputs costs more than multiplying panel by panel."""


class InPanels(nn.Module):
    """A module whose weight lies in panels."""

    panels: torch.Tensor
    """(panel, in, out)"""

    @property
    def weight(self) -> torch.Tensor:
        """Converts the weight to rows for good: a model that reads it once will read it again."""
        return _in_rows(self)


class Panelled(InPanels, nn.Linear):  # type: ignore[override]
    """Replaces a linear layer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _by_panels(self.panels, self.out_features, self.bias, x)


class PanelledShare(InPanels, FusedProduct):  # type: ignore[misc]
    """Replaces linear layers that are fused into one product."""

    def multiply(self, tokens: torch.Tensor) -> torch.Tensor:
        return _by_panels(self.panels, len(self.panels) * self.panels.shape[-1], self.bias, tokens)


class GatedInPlace(nn.Module):
    """Replaces an MLP of transformers: silu(gate) × up, then down. The halves are joined in place: with many tokens,
    allocating memory costs as much as joining them."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_proj(tokens), self.up_proj(tokens)  # type: ignore[operator]
        found: torch.Tensor = self.down_proj(functional.silu(gate, inplace=True).mul_(up))  # type: ignore[operator]
        return found


ROWS: dict[type[nn.Module], type[nn.Module]] = {Panelled: nn.Linear, PanelledShare: FusedProduct}
PANELS = {rows: panels for panels, rows in ROWS.items()}


def lay_out(model: nn.Module) -> int:
    """Changes the layout of weights; returns how many, without heads that got a copy."""
    if _gains(next(model.parameters())):
        _join(model)
    lay_out_packed(model)
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
    """Fuses products of the same tokens, and joins the halves of gated MLPs in place."""
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
    repeated = tokens.expand(number, *tokens.shape)
    if len(tokens) <= FEW_TOKENS:
        return torch.bmm(repeated, panels).transpose(0, 1).flatten(1)
    out = tokens.new_empty(len(tokens), number, width)
    torch.bmm(repeated, panels, out=out.transpose(0, 1))
    return out.flatten(1)


def _panels(weight: torch.Tensor) -> torch.Tensor:
    """(panel, in, out); the last one is padded with zeros."""
    outputs, inputs = weight.shape
    number = panels_of(outputs)
    width = ceil_div(outputs, number)
    panels = weight.new_zeros(number, inputs, width)
    for place, panel in enumerate(panels):
        rows = weight[place * width : (place + 1) * width]
        panel[:, : len(rows)] = rows.T
    return panels


def _gains(weight: torch.Tensor) -> bool:
    """Products in other precisions run in other code, which has its own layout of weights."""
    return weight.device.type == "cpu" and weight.dtype is torch.float32
