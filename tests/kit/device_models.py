"""Tiny random models on the runner for GPUs: on one where there is one, else on the CPU under Triton's interpreter."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from quire.build.tiers import attach
from quire.core.drafting import Drafter
from quire.core.request import Request
from quire.core.sampling import Sampling
from quire.engine.engine import Engine, Stream
from quire.options.tiers import Tiers
from quire.plan.ledger import recorded_rows
from quire.plan.plan import Plan
from quire.worker.backends.choice import REFERENCE
from quire.worker.backends.triton_backend import Triton
from quire.worker.kernels.gated import gated, joined
from quire.worker.kernels.moves import KernelMoves
from quire.worker.model.drafting import DraftModel, part_of
from quire.worker.model.experts import use_experts
from quire.worker.model.fused import fuse, gate
from quire.worker.model.invariant import make_invariant
from quire.worker.model.model import NAME, TorchModel
from quire.worker.model.positions import fix_positions
from quire.worker.pages.arena import Arena
from quire.worker.steps.device_runner import DeviceRunner
from quire.worker.steps.drafting import DeferredDrafter
from tiny_models import OUTPUTS, draft_weights, reference, shape_of

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
GREEDY = Sampling()


def _moved(weights: Any, dtype: torch.dtype) -> Any:
    model = copy.deepcopy(weights).to(DEVICE, dtype)
    model.set_attn_implementation(NAME)
    if model._can_set_experts_implementation():
        model.set_experts_implementation("batched_mm")  # grouped products in fp32 ask the CPU in between
    fuse(model)
    return model


class DeviceService:
    """An engine on a copy of the reference, its pool spoilt before the start, decode steps recorded."""

    def __init__(
        self,
        name: str,
        plan: Plan,
        overlap: int = 2,
        drafter: Drafter | None = None,
        is_compiled: bool = False,
        counts: Sequence[int] = (),
        draft: str | None = None,
        is_invariant: bool = False,
        dtype: torch.dtype = torch.float32,
        tiers: Tiers | None = None,
    ) -> None:
        """`draft`: a draft model makes the guesses; the plan has its layers too. `is_invariant`: nothing that a request
        yields depends on others. `dtype`: of weights, and of what is spoilt. `tiers`: the runner copies from and to
        them, and `stack` is for an engine."""
        self.reference = reference(name)
        stage = plan.require_fit().stages[0]
        arena = Arena(stage, DEVICE, moves=KernelMoves(), spare=1)
        arena.bytes[: stage.pool_bytes].view(dtype).fill_(float("nan"))

        def attached(weights: Any, first_layer: int, layers: int) -> TorchModel:
            part = Arena(part_of(stage, first_layer, layers), DEVICE, arena.bytes, moves=KernelMoves())
            model, backends = _moved(weights, dtype), (Triton(is_invariant), REFERENCE)
            fix_positions(model, plan.max_length)
            if is_invariant:
                make_invariant(model)
            else:
                gate(model, gated, joined)
                use_experts(model)
            return TorchModel(model, part, backends, is_compiled, is_invariant)

        own = len(shape_of(name, self.reference.config).layers)
        model, guesser = attached(self.reference.model, 0, own), None
        if draft is not None:
            guesser, drafter = (
                DraftModel(attached(draft_weights(draft, name), own, stage.layers - own)),
                DeferredDrafter(),
            )
        self.stack, staging = (None, None) if tiers is None else attach(plan, arena, tiers, "tiny")
        self.runner = DeviceRunner(plan, model, arena, draft=guesser, staging=staging)
        self.engine = Engine(plan, self.runner, drafter=drafter, overlap=overlap)
        views = tuple(tuple(table.view for table in memory.tables) for memory in self.engine.scheduler.memories)
        self.runner.record(counts or recorded_rows(plan.max_requests), views)

    def send(self, places: Sequence[int], outputs: int, label: str = "", sampling: Sampling = GREEDY) -> list[Stream]:
        """Prompts of the reference, by their places."""
        prompts = [(place, self.reference.prompts[place]) for place in places]
        return [
            self.engine.submit(Request(f"{label}{place}", prompt, outputs, sampling=sampling))
            for place, prompt in prompts
        ]

    def check(self, places: Sequence[int] | None = None, outputs: int = OUTPUTS, label: str = "") -> None:
        """Tokens are those that transformers generates on a CPU."""
        chosen = range(len(self.reference.prompts)) if places is None else places
        streams = self.send(chosen, outputs, label)
        self.engine.drain()
        for place, stream in zip(chosen, streams, strict=True):
            assert stream.tokens().tolist() == self.reference.tokens[place][:outputs], f"prompt {place}"
