"""Experts whose weights stay packed: transformers' classes keep them as parameters of three dimensions.

    pairs of token and expert ──sorted by expert──▶ up ──▶ gate ──▶ down ──▶ weighted, summed for each token

What differs between classes (gates, biases, norms) is asked of the class itself, as transformers' own grouped products
do. On a CPU experts lie in tiles (`packed_cpu.py`); those that do not fit are dequantised, if they have tokens.
Elsewhere all are, a few at a time: which ones have tokens is known on the device alone, and nothing here waits for it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from quire.worker.model.packed_linear import PART_NUMBERS, Packed, multiply
from quire.worker.weights.packed import PackedWeight

PROJECTIONS = ("gate_up_proj", "up_proj", "down_proj")


class PackedExperts(nn.Module):
    """Mixed into a class of transformers; `gate_up_proj` (or `up_proj`) and `down_proj` are `PackedProjection`."""

    def forward(self, tokens: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        own: Any = self
        each = chosen.shape[-1]
        experts, order = torch.sort(chosen.reshape(-1), stable=True)
        ends = torch.searchsorted(experts, torch.arange(own.num_experts, device=experts.device), right=True)
        name = "gate_up_proj" if own.has_gate else "up_proj"
        found = _project(own, name, tokens[order // each], experts, ends)
        found = own._apply_gate(found) if own.has_gate else own.act_fn(found)
        found = _project(own, "down_proj", found, experts, ends)
        found = own.post_expert_norm(found) if own.has_post_expert_norm else found
        weighted = found * weights.reshape(-1)[order, None]
        back = torch.empty_like(weighted)
        back[order] = weighted
        return back.view(len(tokens), each, -1).sum(dim=1).to(tokens.dtype)


def _project(own: Any, name: str, tokens: torch.Tensor, experts: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    held = getattr(own, name)
    if isinstance(held, PackedProjection):
        found = held.multiply_experts(tokens, ends)
    else:  # the checkpoint has floats for this projection
        found = functional.grouped_mm(tokens, held if own.is_transposed else held.mT, offs=ends.to(torch.int32))
    return found + getattr(own, f"{name}_bias")[experts] if own.has_bias else found


class PackedProjection(Packed):
    """One projection of all experts, (expert, out, in)."""

    def multiply_experts(self, tokens: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """(pair, in) into (pair, out); `ends`: where each expert's pairs end."""
        product = self.grouped or (multiply_each if tokens.device.type == "cpu" else multiply_all)
        return product(tokens, self.packed, ends)


def multiply_each(tokens: torch.Tensor, packed: PackedWeight, ends: torch.Tensor) -> torch.Tensor:
    """(pair, in) into (pair, out); `ends`: where each expert's pairs end."""
    out, begin = tokens.new_empty(len(tokens), packed.shape[-2]), 0
    for expert, end in enumerate(ends.tolist()):
        if end > begin:
            out[begin:end] = multiply(tokens[begin:end], packed.expert(expert), None)
        begin = end
    return out


def multiply_all(tokens: torch.Tensor, packed: PackedWeight, ends: torch.Tensor) -> torch.Tensor:
    """The same without waiting for the device: the pairs of a few experts are moved to the front, multiplied there and
    moved back."""
    count, outputs, inputs = packed.shape
    places, out = torch.arange(len(tokens), device=tokens.device), tokens.new_zeros(len(tokens), outputs)
    begins = torch.cat([ends.new_zeros(1), ends])
    most = max(1, PART_NUMBERS // (outputs * inputs))
    for first in range(0, count, most):
        some = slice(first, min(count, first + most))
        part = packed.having({name: tensor[some] for name, tensor in packed.tensors.items()})
        weight = part.dequantised().to(tokens.dtype)
        own = (ends[some] - begins[first]).to(torch.int32)
        found = functional.grouped_mm(tokens[(places + begins[first]) % len(tokens)], weight.mT, offs=own)
        is_here = (places >= begins[first]) & (places < ends[some.stop - 1])
        out = torch.where(is_here[:, None], found[(places - begins[first]) % len(tokens)], out)
    return out


def can_hold(module: nn.Module, name: str) -> bool:
    """Whether a parameter is a projection of experts whose class says how they are computed."""
    return name in PROJECTIONS and all(hasattr(module, field) for field in ("has_gate", "is_transposed", "num_experts"))


def replace_parameter(module: Any, name: str, dtype: torch.dtype) -> PackedProjection:
    """Puts a module in the place of the parameter; it holds (expert, out, in) also where the class has them
    transposed."""
    count, *sizes = getattr(module, name).shape
    outputs, inputs = reversed(sizes) if module.is_transposed else sizes
    delattr(module, name)
    held = PackedProjection((count, outputs, inputs), dtype)
    setattr(module, name, held)
    if not isinstance(module, PackedExperts):
        module.__class__ = _packed_class(type(module))  # type: ignore[arg-type]
    return held


@cache
def _packed_class(plain: type[nn.Module]) -> type[nn.Module]:
    return type(plain.__name__, (PackedExperts, plain), {})
