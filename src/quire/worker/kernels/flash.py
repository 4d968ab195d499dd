"""The backend `flashinfer`: prompts on FlashInfer's kernels, which are faster there; all else as in `triton`.

It needs pages by index, index × page bytes being a page's place: the plan says whether there is such a view. A window's
prompt is told of the pages from the first that it sees: only distances matter. Layers that bend their scores, have sink
logits or ask in another dtype than their pages' stay with Triton.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch

from quire.core.step import TableView
from quire.plan.layout import GRANULE_BYTES
from quire.plan.plan import KindPlan
from quire.worker.arena import PartView
from quire.worker.attention import Scores
from quire.worker.backends import REFERENCE, Accepts, Backend, Pair
from quire.worker.batch import KindBatch, Packed
from quire.worker.kernels.backend import KernelKind, Triton, processors_of
from quire.worker.kernels.launch import attend
from quire.worker.kernels.shape import Memory
from quire.worker.kernels.tiles import Heads
from quire.worker.kernels.work import Ints, Rows

WORKSPACE_BYTES = 256 << 20
"""At least: twice what the library's documentation advises."""
AT_ONCE = 2
"""Steps whose plans must not overwrite each other: one runs while the next is prepared."""


@dataclass(frozen=True, slots=True, eq=False)
class Prompts:
    """Rows of a step with several queries, as FlashInfer wants to hear of them. All arrays stay on the CPU."""

    rows: Rows
    page_begins: Ints
    """(row + 1,): where a row's pages begin in `indices`."""
    indices: np.ndarray
    """(group, page), int32."""
    last_tokens: Ints
    """(row,): in its last page."""

    def packed(self) -> Ints:
        """Places of the queries among all of the step."""
        row = np.repeat(np.arange(len(self.rows.counts)), self.rows.counts)
        begins = np.cumsum(self.rows.counts) - self.rows.counts
        return self.rows.places[row] + np.arange(len(row)) - begins[row]


@dataclass(frozen=True, slots=True, eq=False)
class IndexedKind(KernelKind):
    prompts: Prompts | None = None
    queries: torch.Tensor | None = None
    """Places of the prompts' queries in the packed batch; none: all of it."""
    page_granules: int = 0
    planned: dict[tuple[object, ...], Any] = field(default_factory=dict)


class FlashInfer(Triton):
    name = "flashinfer"
    accepts = Accepts(
        frozenset({"full", "window"}),
        devices=Triton.accepts.devices,
        dtypes=frozenset({"bf16", "fp16"}),
        head_widths=frozenset({64, 128, 256}),
        needs_index=True,
        but="decoding, sink logits, soft caps and queries in another dtype than the pages: triton",
    )

    def __init__(self, library: Any = None) -> None:
        super().__init__()
        self.library = library or importlib.import_module("flashinfer")
        self._wrappers: dict[tuple[object, ...], list[Any]] = {}
        self._workspace: torch.Tensor | None = None

    def prepare(self, plan: KindPlan, table: TableView, packed: Packed, device: torch.device) -> KindBatch:
        kernel = super().prepare(plan, table, packed, device).kernel
        known = {one.name: getattr(kernel, one.name) for one in fields(KernelKind)}
        many = [rows for rows in known["parts"] if rows.counts.max() > 1]
        if not many:
            return KindBatch({}, kernel=IndexedKind(**known))
        granules = plan.page_bytes // GRANULE_BYTES
        prompts = prompts_of(many[0], known["sight"].first(many[0].positions), plan, table, packed.step.rows)
        places = prompts.packed()
        queries = None if len(places) == len(packed.index) else packed.upload(places)
        return KindBatch({}, kernel=IndexedKind(**known, prompts=prompts, queries=queries, page_granules=granules))

    def answer(
        self, step: KernelKind, heads: Heads, parts: Pair[PartView], query: torch.Tensor, scores: Scores,
        out: torch.Tensor, new: Pair[torch.Tensor] | None,
    ) -> None:  # fmt: skip
        assert isinstance(step, IndexedKind), "this backend prepared the step"
        is_plain = scores.softcap is None and scores.sinks is None and query.dtype == parts[0].tensor.dtype
        if step.prompts is None or not is_plain:
            super().answer(step, heads, parts, query, scores, out, new)
            return
        held = Memory(*(part.tensor for part in parts))
        for rows, launch in zip(step.parts, step.launch(heads), strict=True):
            if rows.counts.max() == 1:
                attend(query, held, step.tables[parts[0].group], launch, scores, out)
        way = self._planned(step, step.prompts, heads, parts, scores.scale)
        pages = tuple(indexed(part, step.page_granules) for part in parts)
        if step.queries is None:
            way.run(query, pages, out=out)
        else:
            out.index_copy_(0, step.queries, way.run(query.index_select(0, step.queries), pages))

    def _planned(self, step: IndexedKind, prompts: Prompts, heads: Heads, parts: Pair[PartView], scale: float) -> Any:
        """Once a step for all layers that are alike."""
        group, window, table = parts[0].group, step.sight.window, step.tables[0]
        dtype, strides = parts[0].tensor.dtype, parts[0].tensor.stride()
        is_even = step.page_granules * strides[0] % strides[1] == 0
        key = (group, heads, window, dtype, table.page_tokens, is_even, scale)
        if key not in step.planned:
            step.planned[key] = way = self._next_wrapper(key, heads, step.rows.device, "auto" if is_even else "fa2")
            begins = np.concatenate([[0], np.cumsum(prompts.rows.counts)])
            given = (begins, prompts.page_begins, prompts.indices[group], prompts.last_tokens)
            way.plan(
                *(torch.from_numpy(values.astype(np.int32)) for values in given), heads.query, heads.key, heads.width,
                table.page_tokens, causal=True, sm_scale=scale, window_left=window - 1, q_data_type=dtype,
                kv_data_type=dtype,
            )  # fmt: skip
        return step.planned[key]

    def _next_wrapper(self, key: tuple[object, ...], heads: Heads, device: torch.device, backend: str) -> Any:
        known = self._wrappers.setdefault(key, [])
        if len(known) < AT_ONCE:
            workspace = self._workspace_for(heads, device)
            known.append(self.library.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend=backend))
        else:
            known.append(known.pop(0))
        return known[-1]

    def _workspace_for(self, heads: Heads, device: torch.device) -> torch.Tensor:
        """One for all layers; heads that need a larger one come by in the step that is tried out at the start."""
        needed = workspace_bytes(heads, processors_of(device))
        if self._workspace is None or self._workspace.numel() < needed:
            self._workspace = torch.empty(needed, dtype=torch.uint8, device=device)
        return self._workspace


def workspace_bytes(heads: Heads, processors: int) -> int:
    """Of what fa2 of FlashInfer 0.5.3 leaves in between where it cuts tokens into pieces. Of all key heads there are at
    most two pieces for each processor; every query head has for each of its own a tile of results and sums, in fp32."""
    pieces, tile = 2 * processors // heads.key, 128 if heads.width < 256 else 64
    return max(WORKSPACE_BYTES, 4 * heads.query * pieces * tile * (heads.width + 1))


def prompts_of(rows: Rows, first_tokens: Ints, plan: KindPlan, table: TableView, step_rows: Ints) -> Prompts:
    size, ends = plan.page_tokens, rows.positions + rows.counts
    first, last = first_tokens // size, -(-ends // size)
    counts = last - first
    row = np.repeat(np.arange(len(counts)), counts)
    logical = first[row] + np.arange(len(row)) - (np.cumsum(counts) - counts)[row]
    addresses = table.addresses[step_rows[rows.table_rows[row]], :, table.column(logical)]
    indices = addresses.T // (plan.page_bytes // GRANULE_BYTES)
    begins = np.concatenate([[0], np.cumsum(counts)])
    return Prompts(rows, begins, np.ascontiguousarray(indices, dtype=np.int32), ends - (last - 1) * size)


def indexed(part: PartView, page_granules: int) -> torch.Tensor:
    """(page, token, head, number)"""
    places, *page = part.tensor.shape
    granule, *strides = part.tensor.stride()
    return part.tensor.as_strided(((places - 1) // page_granules + 1, *page), (page_granules * granule, *strides))


def available(is_invariant: bool = False) -> tuple[Backend, ...]:
    """For a GPU, the fastest first. `is_invariant`: those whose results do not depend on the batch."""
    if is_invariant:
        return (Triton(is_invariant=True),)
    found = importlib.util.find_spec("flashinfer") is not None
    return (FlashInfer(), Triton(), REFERENCE) if found else (Triton(), REFERENCE)
