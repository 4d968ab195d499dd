"""The backend `flashinfer`: prompts on FlashInfer's kernels, which are faster there; the rest as in `triton`.

It needs pages at index × page bytes; the plan's sheets may or may not allow that. A window's prompt gets the pages from
the first that it sees, because only distances matter. Layers with soft caps, sink logits, ALiBi or queries in another
dtype than their pages stay with Triton.
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
from quire.worker.backends.attention import Scores
from quire.worker.backends.batch import KindBatch, Packed
from quire.worker.backends.choice import REFERENCE, Accepts, Backend, Pair
from quire.worker.backends.launch import attend
from quire.worker.backends.triton_backend import KernelKind, Triton, processors_of
from quire.worker.kernels.shape import LayerViews
from quire.worker.kernels.tiles import HeadShape
from quire.worker.kernels.work import Ints, QueryRows
from quire.worker.pages.arena import PartView

WORKSPACE_BYTES = 256 << 20
"""At least this: twice what the library's documentation advises."""
AT_ONCE = 2
"""Steps whose plans must not overwrite each other: one runs while the next is prepared."""


@dataclass(frozen=True, slots=True, eq=False)
class Prompts:
    """Rows of a step with several queries, as FlashInfer describes them. All arrays stay on the CPU."""

    rows: QueryRows
    page_begins: Ints
    """(row + 1,): where a row's pages begin in `indices`."""
    indices: np.ndarray
    """(group, page), int32."""
    last_tokens: Ints
    """(row,): tokens in its last page."""

    def query_places(self) -> Ints:
        """Places of the queries in the packed batch."""
        row = np.repeat(np.arange(len(self.rows.counts)), self.rows.counts)
        begins = np.cumsum(self.rows.counts) - self.rows.counts
        return self.rows.places[row] + np.arange(len(row)) - begins[row]


@dataclass(frozen=True, slots=True, eq=False)
class IndexedKind(KernelKind):
    """One kind in one step, with its prompts for FlashInfer."""

    prompts: Prompts | None = None
    queries: torch.Tensor | None = None
    """Places of the prompts' queries in the packed batch; none: all of it."""
    page_granules: int = 0
    planned: dict[tuple[object, ...], Any] = field(default_factory=dict)


class FlashInfer(Triton):
    """Prompts by FlashInfer, everything else by Triton."""

    name = "flashinfer"
    accepts = Accepts(
        frozenset({"full", "window"}),
        devices=Triton.accepts.devices,
        dtypes=frozenset({"bf16", "fp16"}),
        head_widths=frozenset({64, 128, 256}),
        needs_index=True,
        adds_slopes=True,
        but="decoding, sink logits, soft caps, ALiBi and queries in another dtype than the pages: triton",
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
        places = prompts.query_places()
        queries = None if len(places) == len(packed.index) else packed.upload(places)
        return KindBatch({}, kernel=IndexedKind(**known, prompts=prompts, queries=queries, page_granules=granules))

    def attend_rows(
        self, step: KernelKind, heads: HeadShape, parts: Pair[PartView], query: torch.Tensor, scores: Scores,
        out: torch.Tensor, new: Pair[torch.Tensor] | None,
    ) -> None:  # fmt: skip
        assert isinstance(step, IndexedKind), "this backend prepared the step"
        is_changed = any(one is not None for one in (scores.softcap, scores.sinks, scores.slopes))
        is_plain = not is_changed and query.dtype == parts[0].tensor.dtype
        if step.prompts is None or not is_plain:
            super().attend_rows(step, heads, parts, query, scores, out, new)
            return
        held = LayerViews(*(part.tensor for part in parts))
        for rows, launch in zip(step.parts, step.launch(heads), strict=True):
            if rows.counts.max() == 1:
                attend(query, held, step.tables[parts[0].group], launch, scores, out)
        way = self._plan(step, step.prompts, heads, parts, scores.scale)
        pages = tuple(view_by_index(part, step.page_granules) for part in parts)
        if step.queries is None:
            way.run(query, pages, out=out)
        else:
            out.index_copy_(0, step.queries, way.run(query.index_select(0, step.queries), pages))

    def _plan(self, step: IndexedKind, prompts: Prompts, heads: HeadShape, parts: Pair[PartView], scale: float) -> Any:
        """Plans once a step for all equal layers."""
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

    def _next_wrapper(self, key: tuple[object, ...], heads: HeadShape, device: torch.device, backend: str) -> Any:
        known = self._wrappers.setdefault(key, [])
        if len(known) < AT_ONCE:
            workspace = self._workspace_for(heads, device)
            known.append(self.library.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend=backend))
        else:
            known.append(known.pop(0))
        return known[-1]

    def _workspace_for(self, heads: HeadShape, device: torch.device) -> torch.Tensor:
        """One for all layers. It has its final size after the steps tried at the start, which have all head shapes."""
        needed = workspace_bytes(heads, processors_of(device))
        if self._workspace is None or self._workspace.numel() < needed:
            self._workspace = torch.empty(needed, dtype=torch.uint8, device=device)
        return self._workspace


def workspace_bytes(heads: HeadShape, processors: int) -> int:
    """Partial results of fa2 of FlashInfer 0.5.3 where it cuts tokens into pieces. There are at most two pieces per
    processor over all key heads; each query head has, for each of its pieces, a tile of results and sums in fp32."""
    pieces, tile = 2 * processors // heads.key, 128 if heads.width < 256 else 64
    return max(WORKSPACE_BYTES, 4 * heads.query * pieces * tile * (heads.width + 1))


def prompts_of(rows: QueryRows, first_tokens: Ints, plan: KindPlan, table: TableView, step_rows: Ints) -> Prompts:
    size, ends = plan.page_tokens, rows.positions + rows.counts
    first, last = first_tokens // size, -(-ends // size)
    counts = last - first
    row = np.repeat(np.arange(len(counts)), counts)
    logical = first[row] + np.arange(len(row)) - (np.cumsum(counts) - counts)[row]
    addresses = table.addresses[step_rows[rows.table_rows[row]], :, table.column(logical)]
    indices = addresses.T // (plan.page_bytes // GRANULE_BYTES)
    begins = np.concatenate([[0], np.cumsum(counts)])
    return Prompts(rows, begins, np.ascontiguousarray(indices, dtype=np.int32), ends - (last - 1) * size)


def view_by_index(part: PartView, page_granules: int) -> torch.Tensor:
    """(page, token, head, number)"""
    places, *page = part.tensor.shape
    granule, *strides = part.tensor.stride()
    return part.tensor.as_strided(((places - 1) // page_granules + 1, *page), (page_granules * granule, *strides))


def available(is_invariant: bool = False) -> tuple[Backend, ...]:
    """Backends for a GPU, the fastest first. `is_invariant`: those whose results do not depend on the batch."""
    if is_invariant:
        return (Triton(is_invariant=True),)
    found = importlib.util.find_spec("flashinfer") is not None
    return (FlashInfer(), Triton(), REFERENCE) if found else (Triton(), REFERENCE)
