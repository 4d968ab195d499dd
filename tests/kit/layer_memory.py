"""The last layer of a kind on one backend, from memory that is NaN wherever nothing was written."""

from __future__ import annotations

import numpy as np
import torch

from quire.core.step import Step, TableView
from quire.plan.plan import StagePlan
from quire.worker.backends.attention import Scores
from quire.worker.backends.batch import make_batch
from quire.worker.backends.choice import Backend
from quire.worker.pages.arena import Arena

ROWS = 4


class LayerMemory:
    """Every row has pages of its own, in random order."""

    def __init__(
        self, stage: StagePlan, backend: Backend, device: torch.device, dtype: torch.dtype, columns: int
    ) -> None:
        """`columns`: pages of a row at most."""
        self.stage, self.backend, self.device, self.columns = stage, backend, device, columns
        self.arena = Arena(stage, device)
        self.arena.bytes.view(dtype).fill_(torch.nan)

    def attend(self, kind: int, starts: np.ndarray, counts: np.ndarray, drawn: torch.Tensor, keys: int) -> torch.Tensor:
        """`drawn`: (token, head, number), queries first, then so many keys, and values."""
        plan, ones = self.stage.kinds[kind], np.ones(ROWS, dtype=np.int64)
        pages = np.random.default_rng(1).permutation(ROWS * plan.groups * self.columns)
        table = TableView(self.stage.addresses(kind, pages).reshape(ROWS, plan.groups, self.columns), 0)
        tables = tuple(table for _ in self.stage.kinds)
        ids = np.zeros(counts.sum(), dtype=np.int32)
        step = Step(0, np.array([2, 0, 3, 1]), starts, counts, ones > 0, ones, ids)
        batch = make_batch(step, self.stage, tables, self.device, [self.backend.prepare] * len(tables))
        parts = self.arena.layers[plan.manifest[-1].layer]
        sizes = [drawn.shape[1] - 2 * keys, keys, keys]
        query, key, value = (part.contiguous() for part in drawn.split(sizes, dim=1))
        pair, scores = (parts["key"], parts["value"]), Scores(drawn.shape[-1] ** -0.5)
        return self.backend.attend(batch.kinds[kind], pair, query, (key, value), scores)
