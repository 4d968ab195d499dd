"""Where a model's layers find what they read and write in the step that runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

import torch

from quire.worker import opaque
from quire.worker.arena import Arena
from quire.worker.attention import Scores
from quire.worker.backends import Backend
from quire.worker.batch import Batch
from quire.worker.positions import Temperature

PLAIN, LATENT = ("key", "value"), ("latent", "rope")
"""Parts that attention reads."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Seat:
    arena: Arena
    backends: tuple[Backend, ...]
    """By kind."""
    batch: Batch | None = None
    number: int = 0
    """For compiled models, which ask through operations; 0: layers ask directly."""
    mixers: dict[int, Callable[[torch.Tensor], torch.Tensor]] = field(default_factory=dict)
    """By layer."""
    temperatures: dict[int, Temperature] = field(default_factory=dict)
    """By layer: how queries are scaled by their positions."""

    def running(self) -> Batch:
        assert self.batch is not None, "a step is running"
        return self.batch

    def attend(
        self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scores: Scores, width: int
    ) -> torch.Tensor:
        """(token, head, width) of packed tokens in, the same out; key and value may be latent and rotary key."""
        if not self.number:
            return self.attend_now(module.layer_idx, query, key, value, scores)
        softcap = scores.softcap or 0.0
        found: torch.Tensor = opaque.attend(
            query, key, value, scores.sinks, module.quire_layer, self.number, scores.scale, softcap, width
        )
        return found

    def attend_now(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scores: Scores
    ) -> torch.Tensor:
        parts = self.arena.layers[layer]
        first, second = (parts[name] for name in (LATENT if LATENT[0] in parts else PLAIN))
        kind = self.running().kinds[first.kind]
        if layer in self.temperatures:
            query = self.temperatures[layer].scaled(query, self.running().positions)
        return self.backends[first.kind].attend(kind, (first, second), query, (key, value), scores)

    def take(self, module: Any, mixer: Callable[..., torch.Tensor] | None) -> None:
        """One of the model's layers, and what stands in for its forward, if anything does."""
        module.quire_seat = self
        module.quire_layer = torch.tensor(module.layer_idx)
        if (temperature := getattr(module, "quire_temperature", None)) is not None:
            self.temperatures[module.layer_idx] = temperature
        if mixer is None:
            return
        self.mixers[module.layer_idx] = mixer
        module.forward = MethodType(opaque.mix_forward, module) if self.number else mixer
