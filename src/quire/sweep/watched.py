"""A runner that remembers what each token was chosen from."""

from __future__ import annotations

import torch

from quire.core.step import Step
from quire.plan.plan import Plan
from quire.worker.model.drafting import DraftModel
from quire.worker.model.model import TorchModel
from quire.worker.pages.arena import Arena
from quire.worker.pages.staging import Staging
from quire.worker.steps.runner import TorchRunner


class WatchedRunner(TorchRunner):
    """Remembers the logits that each token of each request was chosen from."""

    def __init__(
        self,
        plan: Plan,
        model: TorchModel,
        arena: Arena,
        draft: DraftModel | None = None,
        *,
        staging: Staging | None = None,
    ) -> None:
        super().__init__(plan, model, arena, draft=draft, staging=staging)
        self.logits: dict[tuple[str, int], torch.Tensor] = {}
        """By the request's name and the length of the sequence before the token."""
        self._names: dict[int, str] = {}

    def launch(self, step: Step) -> None:
        self._names.update((row, request.name) for row, request, _ in step.entered)
        super().launch(step)

    def sample(self, step: Step, logits: torch.Tensor) -> torch.Tensor:
        entries, _, ends = step.sample_places()
        for row, end, one in zip(step.rows[entries], ends, logits, strict=True):
            self.logits[self._names[int(row)], int(end)] = one.clone()
        return super().sample(step, logits)
