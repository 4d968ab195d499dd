"""torch.compile for layers, and what it must not look into: pages, tables and the step that runs.

Layers are compiled one by one: those that are alike share what was compiled, and starting does not take longer with
depth. An operation takes tensors and numbers alone, so it is told the seat that its layer belongs to as a number, and
the layer as a tensor: a number is part of what is compiled. Seats are numbered as they come, so that a process finds
what an earlier one compiled.
"""

from __future__ import annotations

import itertools
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch
from transformers.modeling_layers import GradientCheckpointingLayer

from quire.worker.attention import Scores

if TYPE_CHECKING:
    from quire.worker.mixers.seat import Seat

OPTIONS: dict[str, Any] = {"combo_kernels": True}
"""Of the compiler: small operations that do not need each other are one launch, such as turning queries and keys."""
_seats: WeakValueDictionary[int, Seat] = WeakValueDictionary()
_numbers = itertools.count(1)


def number_of(seat: Seat) -> int:
    """From here on, operations that are told this number go to this seat."""
    number = next(_numbers)
    _seats[number] = seat
    return number


@torch.library.custom_op("quire::attend", mutates_args=())
def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sinks: torch.Tensor | None,
    layer: torch.Tensor,
    seat: int,
    scale: float,
    softcap: float,
    width: int,
) -> torch.Tensor:
    """`softcap` 0: none. `width`: of what a head yields."""
    del width
    return _seats[seat].attend_now(int(layer), query, key, value, Scores(scale, softcap or None, sinks))


@attend.register_fake
def _(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sinks: torch.Tensor | None,
    layer: torch.Tensor,
    seat: int,
    scale: float,
    softcap: float,
    width: int,
) -> torch.Tensor:
    del key, value, sinks, seat, layer, scale, softcap
    return query.new_empty(query.shape[0], query.shape[1], width)


@torch.library.custom_op("quire::mix", mutates_args=())
def mix(hidden_states: torch.Tensor, layer: torch.Tensor, seat: int) -> torch.Tensor:
    return _seats[seat].mixers[int(layer)](hidden_states)


@mix.register_fake
def _(hidden_states: torch.Tensor, layer: torch.Tensor, seat: int) -> torch.Tensor:
    del layer, seat
    return torch.empty_like(hidden_states)


def mix_forward(module: Any, hidden_states: torch.Tensor, **_options: Any) -> torch.Tensor:
    """Stands in for a mixer's forward."""
    mixed: torch.Tensor = mix(hidden_states, module.quire_layer, module.quire_seat.number)
    return mixed


def compile_layers(model: torch.nn.Module, is_invariant: bool = False) -> None:
    """Once for any number of tokens but one, which `uncompiled` is for; the norm behind the last layer too.
    `is_invariant`: sums are added up in the same order in every process, too."""
    options = OPTIONS | (_fixed_choices() if is_invariant else {})
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    for module in (*layers, *_last_norms(model)):
        module.forward = torch.compile(module.forward, dynamic=True, options=options)


def _fixed_choices() -> dict[str, Any]:
    """The compiler tries out nothing that changes a sum."""
    from torch._inductor import config

    return {name: True for name in ("deterministic", "batch_invariant") if hasattr(config, name)}


def _last_norms(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Norms beside a list of layers."""
    return [
        child
        for parent in model.modules()
        if any(holds_layers(child) for child in parent.children())
        for child in parent.children()
        if "Norm" in type(child).__name__
    ]


def holds_layers(module: torch.nn.Module) -> bool:
    first = next(module.children(), None) if isinstance(module, torch.nn.ModuleList) else None
    return isinstance(first, GradientCheckpointingLayer)


def uncompiled() -> AbstractContextManager[None]:
    stance: AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
    return stance
