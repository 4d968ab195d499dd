"""Decode steps, recorded once for each number of rows and played again: no Python and no launches between kernels.

    step of 5 rows ──▶ recording of 8: 3 rows of padding, which read and write a spare page
    rows              [ r0 r1 r2 r3 r4 │ p p p ]
    a recording       known tokens or the last ones ─▶ model ─▶ likeliest tokens ─▶ the last ones of each row

What a step needs goes to fixed places (`uploads.Fixed`) before it is played. There are two recordings of each size:
rows whole, and rows cut into pieces for few or long ones. All recordings share their memory, for one runs at a time:
what one leaves behind must be read before the next is played.
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
from quire.plan.plan import KindPlan
from quire.worker.batch import Padding
from quire.worker.kernels.greedy import likeliest
from quire.worker.model import TorchModel
from quire.worker.uploads import Counting, Direct, Fixed, Upload

WARM_UPS = 2
Tables = tuple[tuple[TableView, ...], ...]
"""By stage, by kind."""


@runtime_checkable
class Recordable(Protocol):
    """A backend whose decode steps are the same launches whatever rows hold."""

    def is_split(self, plan: KindPlan, step: Step, device: torch.device) -> bool: ...

    def fits(self, plan: KindPlan, step: Step, device: torch.device) -> bool: ...


def why_not(model: TorchModel) -> str:
    """Why decode steps of this model cannot be recorded; empty if they can. States are alike in every step."""
    for plan, backend in zip(model.seat.arena.stage.kinds, model.seat.backends, strict=True):
        if plan.kind.kind != "state" and not isinstance(backend, Recordable):
            return f"{backend.name} computes {plan.kind.name} with other launches in every step"
    dtype, experts = model.model.dtype, getattr(model.model.config, "_experts_implementation", None)
    if experts == "grouped_mm" and dtype is not torch.bfloat16 and model.model._can_set_experts_implementation():
        return f"products of experts in {dtype} are cut on the CPU: hold weights as bf16"
    return ""


def row_counts(most: int) -> tuple[int, ...]:
    """2, 4, 8, then half-way steps too: 16, 24, 32, 48, 64, 96, …, up to `most`; a single row is padded to two, for
    compiled layers take one token as something else."""
    most = max(2, most)
    powers = [1 << power for power in range(1, most.bit_length())]
    halves = [power + power // 2 for power in powers if power >= 16]
    return tuple(sorted({count for count in (*powers, *halves) if count < most} | {most}))


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """What a recording leaves behind: (row, vocabulary) and (row,)."""

    logits: torch.Tensor
    tokens: torch.Tensor


class DecodeGraphs:
    def __init__(self, model: TorchModel, last: torch.Tensor, counts: Sequence[int], tables: Tables) -> None:
        """`last`: what each row yielded last, and one place more for padding. `tables`: as steps have them."""
        self._model, self._last = model, last
        self.device = last.device
        self._pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None
        self._recorded: dict[tuple[int, bool], tuple[Callable[[], None], Played]] = {}
        self._shapes: dict[tuple[int, bool], list[Any]] = {}
        """Of what each recording was handed, in order."""
        self._counts = np.array(sorted(counts))
        self.played, self.latest = 0, (int(self._counts[-1]), False)
        nobody = _nobody(tables)
        self._ask_layers(nobody)
        counting = Counting(self.device)
        self._fill(nobody, int(self._counts[-1]), True, counting)
        self.fixed = Fixed(self.device, counting.size_bytes)
        for rows in self._counts[::-1].tolist():
            for is_split in (True, False):
                self._recorded[rows, is_split] = self._record(nobody, rows, is_split)

    def takes(self, step: Step) -> bool:
        """One token for each row, and a new one from each."""
        is_decode = step.drafts is None and len(step.token_ids) == len(step.rows) and bool(step.samples.all())
        if not is_decode or not 0 < len(step.rows) <= int(self._counts[-1]):
            return False
        return all(backend.fits(plan, step, self.device) for plan, backend in self._cutting())

    def play(self, step: Step) -> Played:
        """Captures are left to the caller: the rows' pages hold the states afterwards."""
        step = replace(step, captures=()) if step.captures else step
        rows = int(self._counts[np.searchsorted(self._counts, len(step.rows))])
        is_split = self._is_split(step)
        self.fixed.begin()
        self._fill(step, rows, is_split, self.fixed)
        assert self.fixed.shapes == self._shapes[rows, is_split], "a step hands over what its recording was made with"
        self.fixed.flush()
        self.latest = rows, is_split
        left = self.replay_last()
        self.played += 1
        return Played(left.logits[: len(step.rows)], left.tokens[: len(step.rows)])

    def replay_last(self) -> Played:
        """The recording that was played last, once more."""
        replay, left = self._recorded[self.latest]
        replay()
        return left

    def _is_split(self, step: Step) -> bool:
        return any(backend.is_split(plan, step, self.device) for plan, backend in self._cutting())

    def _cutting(self) -> list[tuple[KindPlan, Recordable]]:
        """Kinds that keep tokens, and who reads them."""
        seat = self._model.seat
        pairs = zip(seat.arena.stage.kinds, seat.backends, strict=True)
        return [(plan, backend) for plan, backend in pairs if isinstance(backend, Recordable)]

    def _ask_layers(self, nobody: Step) -> None:
        """Layers tell their backends what they will ask for when they do so for the first time."""
        batch, token_ids, _ = self._fill(nobody, 1, True, Direct(self.device))
        self._model.logits(token_ids, batch, 0)

    def _fill(self, step: Step, rows: int, is_split: bool, upload: Upload) -> tuple[Any, torch.Tensor, torch.Tensor]:
        """(batch, token ids, rows), in the same order and of the same shapes in every step."""
        padding = Padding(len(step.rows), self._model.seat.arena.spare_address, is_split)
        whole = padded(step, rows, len(self._last) - 1)
        token_ids, numbers = upload(whole.token_ids.astype(np.int64)), upload(whole.rows)
        return self._model.prepare(whole, upload, padding), token_ids, numbers

    def _record(self, step: Step, rows: int, is_split: bool) -> tuple[Callable[[], None], Played]:
        self.fixed.begin()
        batch, token_ids, numbers = self._fill(step, rows, is_split, self.fixed)
        self._shapes[rows, is_split] = self.fixed.shapes
        self.fixed.flush()

        @torch.inference_mode()
        def action() -> Played:
            known = torch.where(token_ids < 0, self._last[numbers], token_ids)
            logits = self._model.logits(known, batch, 0)
            return Played(logits, likeliest(logits, numbers, self._last))

        return record(action, self._pool) if self._pool is not None else _again(action)


def _nobody(tables: Tables) -> Step:
    """A decode step without rows: all that is computed is padding."""
    none = np.empty(0, dtype=np.int64)
    return Step(0, none, none, none, none.astype(np.bool_), none, none.astype(np.int32), tables=tables)


def padded(step: Step, rows: int, spare_row: int) -> Step:
    more = rows - len(step.rows)
    if not more:
        return step

    def filled(values: np.ndarray, value: int) -> np.ndarray:
        return np.concatenate([values, np.full(more, value, dtype=values.dtype)])

    return replace(
        step,
        rows=filled(step.rows, spare_row),
        starts=filled(step.starts, 0),
        counts=filled(step.counts, 1),
        samples=filled(step.samples, 1),
        epochs=filled(step.epochs, 0),
        token_ids=filled(step.token_ids, 0),
    )


def record(action: Callable[[], Played], pool: Any) -> tuple[Callable[[], None], Played]:
    """A CUDA graph of the action, after it has run: what is compiled or chosen at first use is there by then."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            action()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with uncollected(), torch.cuda.graph(graph, pool=pool):
        left = action()
    return graph.replay, Played(borrowed(left.logits), borrowed(left.tokens))


@contextmanager
def uncollected() -> Iterator[None]:
    """A recording of an engine that is gone, let go by the garbage collector meanwhile, would spoil a new one."""
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


def borrowed(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory, without keeping it: recordings that come later may use it as well."""
    return torch.as_tensor(_Loan(tensor), device=tensor.device).view(tensor.dtype).view(tensor.shape)


class _Loan:
    def __init__(self, tensor: torch.Tensor) -> None:
        size = tensor.numel() * tensor.element_size()
        pointer = {"data": (tensor.data_ptr(), False), "shape": (size,), "typestr": "|u1", "version": 3}
        self.__cuda_array_interface__ = pointer


def _again(action: Callable[[], Played]) -> tuple[Callable[[], None], Played]:
    """Where there are no graphs: the action itself, with the same tensors, and its results in the same place."""
    left = action()

    @torch.inference_mode()
    def replay() -> None:
        made = action()
        left.logits.copy_(made.logits)
        left.tokens.copy_(made.tokens)

    return replay, left
