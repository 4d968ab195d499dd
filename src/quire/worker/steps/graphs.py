"""Decode steps, recorded as CUDA graphs for some numbers of rows: no Python and no launches between kernels.

    step of 5 rows ──▶ recording of 8: 3 rows of padding, which read and write a spare page
    rows              [ r0 r1 r2 r3 r4 │ p p p ]
    a recording       known or last tokens ─▶ model ─▶ likeliest tokens ─▶ last tokens of the rows

A step's arrays are uploaded to fixed places (`FixedUpload`) before it is played. There are two recordings of each size:
with whole rows, and with rows cut into pieces, for few or long rows. All recordings share their memory, because one
runs at a time: the output of one must be read before the next is played.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from quire.core.step import Step, TableView
from quire.kinds import Keeps
from quire.plan.plan import KindPlan
from quire.worker.backends.batch import Padding
from quire.worker.kernels.greedy import likeliest
from quire.worker.model.model import TorchModel
from quire.worker.pages.uploads import CountingUpload, DirectUpload, FixedUpload, Upload

WARM_UPS = 2
Tables = tuple[tuple[TableView, ...], ...]
"""By stage, by kind."""


@runtime_checkable
class Recordable(Protocol):
    """A backend whose decode steps are the same launches, whatever rows hold."""

    def is_split(self, plan: KindPlan, step: Step, device: torch.device) -> bool: ...

    def fits(self, plan: KindPlan, step: Step, device: torch.device) -> bool: ...


def why_not(model: TorchModel) -> str:
    """Why decode steps of this model cannot be recorded; empty if they can. Launches for states are the same in every
    step."""
    for plan, backend in zip(model.context.arena.stage.kinds, model.context.backends, strict=True):
        if plan.kind.keeps is not Keeps.STATE and not isinstance(backend, Recordable):
            return f"{backend.name} computes {plan.kind.name} with other launches in every step"
    dtype, experts = model.model.dtype, getattr(model.model.config, "_experts_implementation", None)
    if experts == "grouped_mm" and dtype is not torch.bfloat16 and model.model._can_set_experts_implementation():
        return f"products of experts in {dtype} are cut on the CPU: hold weights as bf16"
    return ""


@dataclass(frozen=True, slots=True, eq=False)
class GraphOutput:
    """(row, vocabulary) and (row,)."""

    logits: torch.Tensor
    tokens: torch.Tensor


class DecodeGraphs:
    """Recordings of decode steps, by number of rows and whether rows are cut."""

    def __init__(
        self, model: TorchModel, last: torch.Tensor, counts: Sequence[int], tables: Tables, buffers: int
    ) -> None:
        """`last`: the token that each row sampled last, and one place for padding. `tables`: as steps have them.
        `buffers`: for uploads, one for each step in flight."""
        self._model, self._last = model, last
        self.device = last.device
        self._pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None
        self._recorded: dict[tuple[int, bool], tuple[Callable[[], None], GraphOutput]] = {}
        self._shapes: dict[tuple[int, bool], list[Any]] = {}
        """Shapes of each recording's arrays, in order."""
        self._counts = np.array(sorted(counts))
        self.played, self.latest = 0, (int(self._counts[-1]), False)
        padding = _padding_step(tables)
        self._run_once(padding)
        model.compiles_one = int(self._counts[0]) == 1
        counting = CountingUpload(self.device)
        self._fill(padding, int(self._counts[-1]), True, counting)
        self.fixed = FixedUpload(self.device, buffers, counting.size_bytes)
        for rows in self._counts[::-1].tolist():
            for is_split in (True, False):
                self._recorded[rows, is_split] = self._record(padding, rows, is_split)

    @property
    def row_counts(self) -> tuple[int, ...]:
        return tuple(self._counts.tolist())

    def takes(self, step: Step) -> bool:
        """Whether a step can be played: one token for each row, and every row samples."""
        is_decode = step.drafts is None and len(step.token_ids) == len(step.rows) and bool(step.samples.all())
        if not is_decode or not 0 < len(step.rows) <= int(self._counts[-1]):
            return False
        return all(backend.fits(plan, step, self.device) for plan, backend in self._recordable())

    def choice(self, step: Step) -> tuple[int, bool]:
        """Of a step that can be played: rows of its recording, and whether rows are cut there."""
        return int(self._counts[np.searchsorted(self._counts, len(step.rows))]), self._is_split(step)

    def play(self, step: Step) -> GraphOutput:
        """Runs a step, without its captures: afterwards the rows' own pages hold the states to copy."""
        step = replace(step, captures=()) if step.captures else step
        rows, is_split = self.choice(step)
        self.fixed.begin()
        self._fill(step, rows, is_split, self.fixed)
        assert self.fixed.shapes == self._shapes[rows, is_split], (
            "a step has the arrays that its recording was made with"
        )
        self.fixed.flush()
        self.latest = rows, is_split
        output = self.replay_last()
        self.played += 1
        return GraphOutput(output.logits[: len(step.rows)], output.tokens[: len(step.rows)])

    def replay_last(self) -> GraphOutput:
        """Plays the latest recording again."""
        replay, output = self._recorded[self.latest]
        replay()
        return output

    def _is_split(self, step: Step) -> bool:
        return any(backend.is_split(plan, step, self.device) for plan, backend in self._recordable())

    def _recordable(self) -> list[tuple[KindPlan, Recordable]]:
        """Kinds that keep tokens, with their backends."""
        context = self._model.context
        pairs = zip(context.arena.stage.kinds, context.backends, strict=True)
        return [(plan, backend) for plan, backend in pairs if isinstance(backend, Recordable)]

    def _run_once(self, step: Step) -> None:
        """Backends learn the head shapes of layers when those first attend."""
        batch, token_ids, _ = self._fill(step, 1, True, DirectUpload(self.device))
        self._model.logits(token_ids, batch, 0)

    def _fill(self, step: Step, rows: int, is_split: bool, upload: Upload) -> tuple[Any, torch.Tensor, torch.Tensor]:
        """(batch, token ids, rows), in the same order and of the same shapes in every step."""
        padding = Padding(len(step.rows), self._model.context.arena.spare_address, is_split)
        whole = pad_step(step, rows, len(self._last) - 1)
        token_ids, numbers = upload(whole.token_ids.astype(np.int64)), upload(whole.rows)
        return self._model.prepare(whole, upload, padding), token_ids, numbers

    def _record(self, step: Step, rows: int, is_split: bool) -> tuple[Callable[[], None], GraphOutput]:
        self.fixed.begin()
        batch, token_ids, numbers = self._fill(step, rows, is_split, self.fixed)
        self._shapes[rows, is_split] = self.fixed.shapes
        self.fixed.flush()

        @torch.inference_mode()
        def action() -> GraphOutput:
            known = torch.where(token_ids < 0, self._last[numbers], token_ids)
            logits = self._model.logits(known, batch, 0)
            return GraphOutput(logits, likeliest(logits, numbers, self._last))

        return record(action, self._pool) if self._pool is not None else _rerun(action)


def _padding_step(tables: Tables) -> Step:
    """A decode step without rows of its own: everything that it computes is padding."""
    none = np.empty(0, dtype=np.int64)
    return Step(0, none, none, none, none.astype(np.bool_), none, none.astype(np.int32), tables=tables)


def pad_step(step: Step, rows: int, spare_row: int) -> Step:
    """A decode step of `rows` rows: its own, then rows of padding, which all are `spare_row`."""
    more = rows - len(step.rows)
    if not more:
        return step

    def extend(values: np.ndarray, value: int) -> np.ndarray:
        return np.concatenate([values, np.full(more, value, dtype=values.dtype)])

    return replace(
        step,
        rows=extend(step.rows, spare_row),
        starts=extend(step.starts, 0),
        counts=extend(step.counts, 1),
        samples=extend(step.samples, 1),
        epochs=extend(step.epochs, 0),
        token_ids=extend(step.token_ids, 0),
    )


def record(action: Callable[[], GraphOutput], pool: Any) -> tuple[Callable[[], None], GraphOutput]:
    """A CUDA graph of the action, after warm-up runs in which kernels are compiled and chosen."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            action()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with no_garbage_collection(), torch.cuda.graph(graph, pool=pool):
        output = action()
    return graph.replay, GraphOutput(borrow(output.logits), borrow(output.tokens))


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """A recording of an earlier engine that is collected while another is recorded would spoil it."""
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


def borrow(tensor: torch.Tensor) -> torch.Tensor:
    """A view of the same memory that does not own it: later recordings may use it as well."""
    return torch.as_tensor(_Loan(tensor), device=tensor.device).view(tensor.dtype).view(tensor.shape)


class _Loan:
    def __init__(self, tensor: torch.Tensor) -> None:
        size = tensor.numel() * tensor.element_size()
        pointer = {"data": (tensor.data_ptr(), False), "shape": (size,), "typestr": "|u1", "version": 3}
        self.__cuda_array_interface__ = pointer


def _rerun(action: Callable[[], GraphOutput]) -> tuple[Callable[[], None], GraphOutput]:
    """Without CUDA: runs the action again, with the same tensors and its results in the same place."""
    output = action()

    @torch.inference_mode()
    def replay() -> None:
        made = action()
        output.logits.copy_(made.logits)
        output.tokens.copy_(made.tokens)

    return replay, output
