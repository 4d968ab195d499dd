"""What a model's layers read and write in the running step, and how compiled layers reach it.

torch.compile must not look into pages, tables and the running step. Compiled layers reach them through the operations
below, which take only tensors and numbers: the context as a number, and the layer as a tensor, because a number is part
of what is compiled. Contexts of compiled models are numbered in the order of their creation, so a process finds what an
earlier one compiled.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from types import MethodType
from typing import Any
from weakref import WeakValueDictionary

import torch

from quire.worker.backends.attention import Scores
from quire.worker.backends.batch import StepBatch
from quire.worker.backends.choice import Backend
from quire.worker.mixers.temperature import Temperature
from quire.worker.pages.arena import Arena

PLAIN, LATENT = ("key", "value"), ("latent", "rope")
"""Parts that attention reads."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class ForwardContext:
    """One model's arena and backends, and the batch of the running step."""

    arena: Arena
    backends: tuple[Backend, ...]
    """By kind."""
    is_compiled: bool = False
    """Whether layers reach the context through operations."""
    number: int = field(default=0, init=False)
    """Identifies a compiled model's context to operations."""
    batch: StepBatch | None = field(default=None, init=False)
    mixers: dict[int, Callable[[torch.Tensor], torch.Tensor]] = field(default_factory=dict, init=False)
    """By layer."""
    temperatures: dict[int, Temperature] = field(default_factory=dict, init=False)
    """By layer: how queries are scaled by their positions."""

    def __post_init__(self) -> None:
        if self.is_compiled:
            self.number = next(_numbers)
            _contexts[self.number] = self

    def running(self) -> StepBatch:
        assert self.batch is not None, "a step is running"
        return self.batch

    def attend(
        self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scores: Scores, width: int
    ) -> torch.Tensor:
        """(token, head, width) of packed tokens in, the same out; key and value may be latent and rotary key."""
        if not self.is_compiled:
            return self.attend_now(module.layer_idx, query, key, value, scores)
        softcap = scores.softcap or 0.0
        found: torch.Tensor = attend_operation(
            query, key, value, scores.sinks, scores.slopes, module.quire_layer, self.number, scores.scale, softcap,
            width=width,
        )  # fmt: skip
        return found

    def attend_now(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scores: Scores
    ) -> torch.Tensor:
        parts = self.arena.layers[layer]
        first, second = (parts[name] for name in (LATENT if LATENT[0] in parts else PLAIN))
        kind = self.running().kinds[first.kind]
        if layer in self.temperatures:
            query = self.temperatures[layer].scale(query, self.running().positions)
        return self.backends[first.kind].attend(kind, (first, second), query, (key, value), scores)

    def take(self, module: Any, mixer: Callable[..., torch.Tensor] | None) -> None:
        """Connects one of the model's layers. `mixer` replaces its forward."""
        module.quire_context = self
        module.quire_layer = torch.tensor(module.layer_idx)
        if (temperature := getattr(module, "quire_temperature", None)) is not None:
            self.temperatures[module.layer_idx] = temperature
        if mixer is None:
            return
        self.mixers[module.layer_idx] = mixer
        module.forward = MethodType(_mix_forward, module) if self.is_compiled else mixer


_contexts: WeakValueDictionary[int, ForwardContext] = WeakValueDictionary()
_numbers = itertools.count(1)


@torch.library.custom_op("quire::attend", mutates_args=())
def attend_operation(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sinks: torch.Tensor | None,
    slopes: torch.Tensor | None,
    layer: torch.Tensor,
    context: int,
    scale: float,
    softcap: float,
    *,
    width: int,
) -> torch.Tensor:
    """`softcap` 0: none. `width`: numbers per head of the result."""
    del width
    scores = Scores(scale, softcap or None, sinks, slopes)
    return _contexts[context].attend_now(int(layer), query, key, value, scores)


@attend_operation.register_fake
def _(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sinks: torch.Tensor | None,
    slopes: torch.Tensor | None,
    layer: torch.Tensor,
    context: int,
    scale: float,
    softcap: float,
    *,
    width: int,
) -> torch.Tensor:
    del key, value, sinks, slopes, context, layer, scale, softcap
    return query.new_empty(query.shape[0], query.shape[1], width)


@torch.library.custom_op("quire::mix", mutates_args=())
def mix_operation(hidden_states: torch.Tensor, layer: torch.Tensor, context: int) -> torch.Tensor:
    return _contexts[context].mixers[int(layer)](hidden_states)


@mix_operation.register_fake
def _(hidden_states: torch.Tensor, layer: torch.Tensor, context: int) -> torch.Tensor:
    del layer, context
    return torch.empty_like(hidden_states)


def _mix_forward(module: Any, hidden_states: torch.Tensor, **_options: Any) -> torch.Tensor:
    """Replaces a mixer's forward in a compiled model."""
    mixed: torch.Tensor = mix_operation(hidden_states, module.quire_layer, module.quire_context.number)
    return mixed
