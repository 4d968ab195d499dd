"""Experts and routers of transformers' classes on kernels (`kernels/experts.py`, `kernels/routing.py`).

    logits ─▶ router ─▶ experts and shares ─▶ gate, up ─▶ down × share ─▶ summed for each token

What a class computes is not read from its name: its gate and its router are tried with random numbers, and replaced
where a kernel's results are the same. Others stay as they are.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from quire.worker.kernels.experts import CLAMPED, GELU, HALVES, INTERLEAVED, SILU, Gate, Product, by_experts
from quire.worker.kernels.routing import SOFTMAX, SOFTMAX_OF_CHOSEN, routed
from quire.worker.model.expert_tiles import tiles_for
from quire.worker.model.packed_kernels import as_ints, as_told, product_of
from quire.worker.model.packed_linear import Packed

_LOG = logging.getLogger(__name__)
FIELDS = ("has_gate", "has_bias", "is_transposed", "num_experts", "_apply_gate", "gate_up_proj", "down_proj")
TRIED = 33
"""Tokens, and numbers of each half of a gate, with which a class is tried."""
NEAR = 2e-2


class KernelExperts(nn.Module):
    """Mixed into a class of transformers."""

    quire_gate: Gate

    def forward(self, tokens: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        first, second = product_in(self, "gate_up_proj"), product_in(self, "down_proj")
        facts, gate = [_facts(first), _facts(second)], self.quire_gate
        sizes = [len(facts[0]), *facts[0], *facts[1]]
        found: torch.Tensor = experts(
            tokens, [chosen, weights], [*_tensors(first), *_tensors(second)], sizes, [float(part) for part in gate]
        )
        return found.sum(dim=1)


def product_in(module: Any, name: str) -> Product:
    held, bias = getattr(module, name), getattr(module, f"{name}_bias") if module.has_bias else None
    if isinstance(held, Packed):
        return product_of(held.packed)._replace(bias=bias)
    return Product(held, module.is_transposed, bias)


def _tensors(product: Product) -> list[torch.Tensor]:
    return [one for one in (product.weight, product.bias, *(product.sides or ())) if one is not None]


def _facts(product: Product) -> list[int]:
    own = as_ints(product.facts) if product.facts else []
    return [int(product.is_transposed), int(product.bias is not None), int(product.sides is not None), *own]


def _product(tensors: list[torch.Tensor], facts: list[int]) -> Product:
    """Takes a product's tensors from the list."""
    is_transposed, has_bias, has_sides, *own = facts
    weight = tensors.pop(0)
    bias = tensors.pop(0) if has_bias else None
    sides = (tensors.pop(0), tensors.pop(0), tensors.pop(0)) if has_sides else None
    return Product(weight, bool(is_transposed), bias, sides, as_told(own) if own else ())


@torch.library.custom_op("quire::experts", mutates_args=())
def experts(
    tokens: torch.Tensor, choice: list[torch.Tensor], weights: list[torch.Tensor], sizes: list[int], gate: list[float]
) -> torch.Tensor:
    """(token, chosen, out), multiplied by shares. `choice`: experts and shares; `weights`: tensors of both products;
    `sizes`: how many facts the first has, and the facts of both."""
    cut, tensors = 1 + sizes[0], list(weights)
    first, second = _product(tensors, sizes[1:cut]), _product(tensors, sizes[cut:])
    chosen, shares = choice
    sort, activation, slope, limit = gate
    tiles = tiles_for(chosen.numel(), (first, second), tokens)
    return by_experts(
        tokens.contiguous(), (chosen.contiguous(), shares.contiguous()), (first, second),
        Gate(int(sort), int(activation), slope, limit), tiles,
    )  # fmt: skip


@experts.register_fake
def _(
    tokens: torch.Tensor, choice: list[torch.Tensor], weights: list[torch.Tensor], sizes: list[int], gate: list[float]
) -> torch.Tensor:
    del weights, sizes, gate
    return tokens.new_empty(*choice[0].shape, tokens.shape[-1])


def use_experts(model: nn.Module) -> int:
    """Lets kernels compute experts and choose them; returns how many modules."""
    found = 0
    for module in list(model.modules()):
        gate = gate_of(module)
        if gate is not None:
            module.quire_gate = gate  # type: ignore[assignment]
            module.__class__ = _on_kernels(KernelExperts, type(module))  # type: ignore[arg-type]
            found += 1
        rule = rule_of(module)
        if rule is not None:
            module.quire_rule = rule  # type: ignore[assignment]
            module.__class__ = _on_kernels(KernelRouter, type(module))  # type: ignore[arg-type]
            found += 1
    return found


@cache
def _on_kernels(mixed: type[nn.Module], plain: type[nn.Module]) -> type[nn.Module]:
    return type(plain.__name__, (mixed, plain), {})


def gate_of(module: Any) -> Gate | None:
    """The gate that gives what the class's own gives; None: not experts, or another."""
    if not all(hasattr(module, field) for field in FIELDS) or not module.has_gate:
        return None
    if getattr(module, "has_post_expert_norm", False) or isinstance(module, KernelExperts):
        return None
    if any(
        isinstance(held, Packed) and "order" in held.packed.tensors for held in (module.gate_up_proj, module.down_proj)
    ):
        return None  # each expert has its inputs in an order of its own
    slope, limit = getattr(module, "alpha", None), getattr(module, "limit", None)
    gates = [Gate(HALVES.value, SILU.value), Gate(HALVES.value, GELU.value)]
    if isinstance(slope, float) and isinstance(limit, float):
        gates += [Gate(sort.value, CLAMPED.value, slope, limit) for sort in (INTERLEAVED, HALVES)]
    halves = 4 * torch.randn(TRIED, 2 * TRIED, generator=torch.Generator().manual_seed(0))
    try:
        right = module._apply_gate(halves)
    except Exception:  # a class of its own kind is computed by its own code
        return None
    return next((gate for gate in gates if _is_near(joined(halves, gate), right)), None)


def joined(halves: torch.Tensor, gate: Gate) -> torch.Tensor:
    """(…, 2 × out) into (…, out), as kernels do."""
    are_in_turns = gate.sort == INTERLEAVED.value
    gates, ups = (halves[..., ::2], halves[..., 1::2]) if are_in_turns else halves.chunk(2, dim=-1)
    if gate.activation == CLAMPED.value:
        gates, ups = gates.clamp(max=gate.limit), ups.clamp(-gate.limit, gate.limit) + 1
        return gates * torch.sigmoid(gate.slope * gates) * ups
    if gate.activation == GELU.value:
        return functional.gelu(gates, approximate="tanh") * ups
    return functional.silu(gates) * ups


def _is_near(found: torch.Tensor, right: torch.Tensor) -> bool:
    return found.shape == right.shape and bool((found - right).norm() <= 1e-5 * right.norm())


class KernelRouter(nn.Module):
    """Mixed into a class of transformers that returns logits, shares and experts."""

    quire_rule: tuple[int, bool]

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        own: Any = self
        logits = functional.linear(tokens.reshape(-1, tokens.shape[-1]), own.weight)
        chosen, shares = routed(logits, getattr(own, "bias", None), own.top_k, *self.quire_rule)
        return logits, shares, chosen


@torch.inference_mode()
def rule_of(module: Any) -> tuple[int, bool] | None:
    """The rule that chooses what the class's own code chooses, with its own weight; None: not a router, or another."""
    weight = getattr(module, "weight", None)
    is_router = "Router" in type(module).__name__ and hasattr(module, "top_k") and not isinstance(module, KernelRouter)
    if not is_router or not isinstance(weight, torch.Tensor) or weight.dim() != 2:
        return None
    random = torch.randn(TRIED, weight.shape[1], generator=torch.Generator().manual_seed(0))
    tokens = random.to(weight.device, weight.dtype)
    try:
        _, right, chosen = module(tokens)
    except Exception:  # another class's router
        return None
    if right.shape != (TRIED, module.top_k) or chosen.shape != right.shape:
        return None
    logits = functional.linear(tokens, weight)
    for rule in ((SOFTMAX.value, True), (SOFTMAX.value, False), (SOFTMAX_OF_CHOSEN.value, True)):
        found, shares = routed(logits, getattr(module, "bias", None), module.top_k, *rule)
        same = (found == chosen).all(dim=1)  # equal logits may be chosen in any order
        is_near = torch.allclose(shares[same].float(), right[same].float(), rtol=NEAR, atol=1e-3)
        if shares.dtype == right.dtype and int(same.sum()) > TRIED // 2 and is_near:
            return rule
    return None
