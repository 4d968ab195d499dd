"""A model with its weights, placed on the pages of one arena. On a CPU; `boot.py` does the same on a GPU.

Weights (as they were read) ──▶ arena, with all pages ──▶ PlacedModel: model [, draft model]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from quire.options.run import RunOptions
from quire.plan.plan import Plan, StagePlan
from quire.worker.model.drafting import DraftModel, part_of
from quire.worker.model.model import TorchModel
from quire.worker.model.positions import fix_positions
from quire.worker.pages.arena import Arena
from quire.worker.ranks.member import NO_OTHERS, Member
from quire.worker.ranks.share import stage_of
from quire.worker.steps.meter import Meter


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """Models of transformers: the model, and a draft model, whose layers are the last ones of the plan."""

    model: Any
    draft: Any = None
    draft_layers: int = 0
    member: Member = NO_OTHERS
    """Whose share of the models they are."""

    def with_layers(self, stage: StagePlan) -> list[tuple[Any, StagePlan]]:
        """Each model, with its own layers of the stage."""
        if self.draft is None:
            return [(self.model, stage)]
        own = stage.layers - self.draft_layers
        return [
            (self.model, part_of(stage, 0, own)),
            (self.draft, part_of(stage, own, self.draft_layers)),
        ]


@dataclass(frozen=True, slots=True, eq=False)
class PlacedModel:
    """A model that can run: its layers read and write the arena."""

    model: TorchModel
    arena: Arena
    options: RunOptions
    draft: DraftModel | None = None
    meter: Meter | None = None
    """On a GPU: has measured what the memory went to."""
    member: Member = NO_OTHERS

    @property
    def scales(self) -> str:
        """Which scales keys and values in 8 bits have, of both models; empty: none."""
        return self.model.scales + ("" if self.draft is None else self.draft.model.scales)


def use_threads(options: RunOptions) -> None:
    """Of the whole process: torch has one number for all models."""
    if options.threads is not None:
        torch.set_num_threads(options.threads)


def place_on_cpu(plan: Plan, weights: Weights, options: RunOptions) -> PlacedModel:
    use_threads(options)
    stage, device = stage_of(plan, weights.member.share), torch.device("cpu")
    arena = Arena(stage, device)

    def on(model: Any, part: StagePlan) -> TorchModel:
        fix_positions(model, plan.max_length)
        return TorchModel(model, Arena(part, device, arena.bytes))

    own, *draft = (on(model, part) for model, part in weights.with_layers(stage))
    return PlacedModel(own, arena, options, DraftModel(*draft) if draft else None, member=weights.member)
