"""Models of transformers without memory for their parameters: a whole one, and one rank's share of it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from quire.worker.model.model import build
from quire.worker.ranks.local import equal_part, local_config, part_or_copy
from quire.worker.ranks.rules import NARROW, PACKED, TRANSPOSED, Narrow


def skeletons(config: Any, ranks: int, dtype: torch.dtype) -> tuple[Any, Any]:
    """(whole, share of one rank). Buffers have their values."""
    with without_memory():
        whole = build(config, dtype)
        local = build(local_config(config, ranks), dtype)
    _narrow(whole, local, ranks)
    _same_ropes(whole, local)
    return whole, local


@contextmanager
def without_memory() -> Iterator[None]:
    """Modules that are made in this context have parameters on the meta device."""
    register = nn.Module.register_parameter

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and parameter.device.type != "meta":
            parameter = nn.Parameter(parameter.to("meta"), requires_grad=False)
        register(module, name, parameter)

    nn.Module.register_parameter = on_meta  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def _narrow(whole: Any, local: Any, ranks: int) -> None:
    """Replaces layers whose class counts on the hidden size."""
    for path, module in list(local.named_modules()):
        rule = NARROW.get(type(module).__name__)
        if rule is not None:
            _shrink(module, whole.get_submodule(path), rule, ranks)


def _same_ropes(whole: Any, local: Any) -> None:
    """Some configurations derive the width of a head from their number."""
    for path, module in list(local.named_modules()):
        if "Rotary" in type(module).__name__:
            parent, _, name = path.rpartition(".")
            setattr(local.get_submodule(parent), name, copy.deepcopy(whole.get_submodule(path)))


def _shrink(module: Any, whole: Any, rule: Narrow, ranks: int) -> None:
    """Numbers are those of the whole, then divided: fewer heads may have made others of them."""
    for name, value in whole.__dict__.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            setattr(module, name, value)
    for names, divide in ((rule.numbers, equal_part), (rule.copies, part_or_copy)):
        for name in names:
            setattr(module, name, divide(f"{type(module).__name__}.{name}", getattr(whole, name), ranks))
    for name, child in whole.named_children():
        if name in (*rule.outputs, *rule.inputs):
            setattr(module, name, _resized(whole, name, child, name in rule.outputs, ranks))
        elif any(True for _ in child.parameters()):
            setattr(module, name, copy.deepcopy(child))


def _resized(whole: Any, name: str, layer: Any, is_output: bool, ranks: int) -> Any:
    made = copy.deepcopy(layer)
    if isinstance(layer, nn.Conv1d):
        made.in_channels = made.out_channels = made.groups = equal_part(name, layer.groups, ranks)
        _resize(made, 0, made.groups)
        return made
    if layer.weight.dim() == 1:
        _resize(made, 0, _outputs(whole, name, len(layer.weight), ranks))
        return made
    inputs, outputs = layer.weight.shape if type(layer).__name__ in TRANSPOSED else layer.weight.shape[::-1]
    axis = int(is_output == (type(layer).__name__ in TRANSPOSED))
    size = _outputs(whole, name, outputs, ranks) if is_output else equal_part(name, inputs, ranks)
    _resize(made, axis, size, with_bias=is_output)
    for field in ("out_features", "nf") if is_output else ("in_features", "nx"):
        if hasattr(made, field):
            setattr(made, field, size)
    return made


def _outputs(whole: Any, name: str, size: int, ranks: int) -> int:
    """Each part of a packed layer counts heads of its own."""
    sizes, width = PACKED.get((type(whole).__name__, name)), getattr(whole, "head_dim", 1)
    parts = [size] if sizes is None else sizes(whole, size)
    return sum(part_or_copy(name, part // width, ranks) * width for part in parts)


def _resize(layer: Any, axis: int, size: int, with_bias: bool = True) -> None:
    shape = list(layer.weight.shape)
    shape[axis] = size
    layer.weight = nn.Parameter(layer.weight.new_empty(shape), requires_grad=False)
    if getattr(layer, "bias", None) is not None and with_bias:
        layer.bias = nn.Parameter(layer.bias.new_empty(size), requires_grad=False)
