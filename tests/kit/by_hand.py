"""Steps that a test writes by hand, over memory that is NaN at first: every page lies on a sheet of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from quire.core.dtypes import DType
from quire.core.request import Request
from quire.core.step import Capture, Ints, Step, TableView
from quire.models.read import read_config
from quire.plan.make import make_plan
from quire.plan.settings import Budget, Settings
from quire.sweep import spread
from quire.worker.backends.choice import REFERENCE, Backend
from quire.worker.model.model import TorchModel, build
from quire.worker.pages.arena import Arena
from quire.worker.steps.runner import TorchRunner


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens [start, start + count) of a row. `captures`: (tokens, pages), both as in a `Capture`."""

    row: int
    start: int
    count: int
    captures: Sequence[tuple[int, Ints]] = ()
    drafts: Sequence[int] = ()
    """Guesses that the row computes behind these tokens."""


class ByHand:
    """Rows of a runner, and the steps that compute them."""

    def __init__(self, runner: TorchRunner, views: Sequence[TableView] = ()) -> None:
        """`views`: tables to write to, such as those that decode steps were recorded with."""
        self.runner, self.plan, self.arena = runner, runner.plan, runner.arena
        self.stage = runner.plan.stages[0]
        self.kind = next(index for index, one in enumerate(self.stage.kinds) if one.kind.kind == "state")
        """Of the states."""
        self.tables = [view.addresses for view in views] or [self._table(kind) for kind in range(len(self.stage.kinds))]
        self.prompts: list[np.ndarray] = []
        self._entered: list[tuple[int, Request, np.ndarray]] = []
        self._clears: list[tuple[int, int, Ints]] = []
        self._sheets = self._steps = 0

    def _table(self, kind: int) -> np.ndarray:
        one = self.stage.kinds[kind]
        columns = 1 + self.plan.lookahead if kind == self.kind else -(-self.plan.max_length // one.page_tokens)
        return np.zeros((self.plan.max_requests, one.groups, columns), dtype=np.int32)

    def pages(self, kind: int | None = None, columns: int = 1) -> Ints:
        """New ones, (column, group) in a line; of a state unless a kind is named."""
        one = self.stage.kinds[self.kind if kind is None else kind]
        sheets = self._sheets + np.arange(columns * one.groups)
        self._sheets += len(sheets)
        assert self._sheets <= self.stage.sheets, "the pool has a sheet for every page"
        return sheets * one.pages_per_sheet

    def enter(self, prompt: np.ndarray, like: int | None = None, state: Ints | None = None) -> int:
        """A new row. `like`: of another row, all but states. `state`: a page to go on from; none: a cleared one."""
        row = len(self.prompts)
        self.prompts.append(prompt)
        request = Request(f"{row}", prompt, self.plan.max_length - len(prompt))
        self._entered.append((row, request, np.empty(0, dtype=np.int32)))
        for kind, table in enumerate(self.tables):
            if kind != self.kind and like is not None:
                table[row] = table[like]
                continue
            pages = self.pages(kind, table.shape[2])
            if kind == self.kind and state is not None:
                pages[: len(state)] = state
            elif kind == self.kind:
                self._clears.append((0, kind, pages))
            table[row] = self.stage.addresses(kind, pages).reshape(table.shape[2], -1).T
        return row

    def step(self, *chunks: Chunk) -> Step:
        rows, starts, known = (
            np.array([getattr(chunk, name) for chunk in chunks]) for name in ("row", "start", "count")
        )
        drafts = np.array([len(chunk.drafts) for chunk in chunks])
        tokens = [(*self.prompts[one.row][one.start : one.start + one.count], *one.drafts) for one in chunks]
        captures = [
            Capture(entry, tokens, 0, self.kind, pages)
            for entry, chunk in enumerate(chunks)
            for tokens, pages in chunk.captures
        ]
        step = Step(
            self._steps, rows, starts, known + drafts, np.ones(len(rows), dtype=np.bool_), 0 * rows,
            np.concatenate(tokens).astype(np.int32), tuple(self._entered),
            (tuple(TableView(table, 0) for table in self.tables),), clears=tuple(self._clears),
            drafts=drafts if drafts.any() else None, captures=tuple(captures),
        )  # fmt: skip
        self._steps += 1
        self._entered, self._clears = [], []
        return step

    def run(self, *chunks: Chunk) -> list[int]:
        """The tokens that the step's rows sample."""
        self.runner.launch(self.step(*chunks))
        return self.runner.collect().tokens.tolist()

    def state(self, pages: Ints) -> list[torch.Tensor]:
        """What pages of a state hold, part by part of each layer; (head, number) each."""
        addresses = torch.from_numpy(self.stage.addresses(self.kind, pages).astype(np.int64))
        parts = [part for layer in self.arena.layers.values() for part in layer.values() if part.kind == self.kind]
        return [part.tensor[int(addresses[part.group]), 0].cpu().clone() for part in parts]

    def own_pages(self, row: int) -> Ints:
        """A row's state behind what it knows."""
        granules = self.tables[self.kind][row, :, 0].astype(np.int64)
        per_sheet = self.stage.kinds[self.kind].pages_per_sheet
        return granules // (self.stage.sheet_bytes // 256) * per_sheet

    def mix(self, *chunks: Chunk) -> list[torch.Tensor]:
        """What each mixer alone makes of one step, whose inputs depend on row and position alone."""
        model, step = self.runner.model, self.step(*chunks)
        for _, kind, pages in step.clears:
            self.arena.clear(kind, pages)
        size = (len(self.prompts), self.plan.max_length, model.model.config.hidden_size)
        given = torch.randn(*size, generator=torch.Generator().manual_seed(1))
        hidden = torch.cat([given[one.row, one.start : one.start + one.count + len(one.drafts)] for one in chunks])
        model.context.batch = model.prepare(step)
        with torch.inference_mode():
            return [mixer(hidden[None]) for mixer in model.context.mixers.values()]


Make = Callable[[], ByHand]


def make_by_hand(name: str, config: Any, backends: Sequence[Backend] = (REFERENCE,), lookahead: int = 0) -> Make:
    """Makes rows of one model with random weights, each time over new memory: up to 160 tokens, in pages of 16."""
    settings = Settings(
        max_length=160, max_requests=8, batch_tokens=512, kv_dtype=DType.FP32, match_unit_tokens=16,
        speculative_tokens=lookahead,
    )  # fmt: skip
    shape = replace(read_config(json.loads(config.to_json_string()), name), draft_layers=())
    plan = make_plan(shape, settings, Budget(sheets=(128,))).require_fit()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = spread(build(config, torch.float32))

    def made() -> ByHand:
        arena = Arena(plan.stages[0], torch.device("cpu"))
        arena.bytes.view(torch.float32).fill_(float("nan"))
        return ByHand(TorchRunner(plan, TorchModel(model, arena, backends), arena))

    return made
