"""The backend `triton`: every kind of attention, and states, on Quire's own kernels.

Once per step, the tables of its rows are uploaded as they are, without expanding them to tokens. Once per layer, new
keys and values are written to their slots, then rows with one query attend, then the others. Where all rows have one
query, the kernel that attends writes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from quire.core.step import Step, TableView
from quire.kinds import Keeps
from quire.plan.plan import KindPlan
from quire.worker.backends.attention import Scores
from quire.worker.backends.batch import KindBatch, Packed, Padding
from quire.worker.backends.choice import Accepts, Pair
from quire.worker.backends.launch import Launch, attend, plan_invariant, plan_onto, plan_recorded
from quire.worker.backends.recurrent import Columns, Matrices, Recurrence
from quire.worker.backends.states import StateRows, convolve, recur, state_rows
from quire.worker.kernels.pages import write
from quire.worker.kernels.recorded import invariant_fits, invariant_pieces, is_split
from quire.worker.kernels.shape import DeviceTable, LayerViews
from quire.worker.kernels.tile import INTERPRETED
from quire.worker.kernels.tiles import HeadShape
from quire.worker.kernels.work import QueryRows, Sight
from quire.worker.pages.arena import PartView
from quire.worker.pages.quantised import is_quantised, row_scales
from quire.worker.pages.uploads import DirectUpload, Upload

INTERPRETER_PROCESSORS = 4
STATES = (
    frozenset({"delta", "conv_qk", "conv_v"}),
    frozenset({"delta", "conv_q", "conv_k", "conv_v"}),
    frozenset({"ssm", "conv_x", "conv_bc"}),
    frozenset({"conv"}),
)
"""Parts of Gated DeltaNet, Kimi's delta attention, Mamba-2 and short convolutions."""


@dataclass(frozen=True, slots=True, eq=False)
class KernelKind:
    """One kind in one step, on the device."""

    is_latent: bool
    tables: tuple[DeviceTable, ...]
    """By group; their rows are the step's."""
    rows: torch.Tensor
    positions: torch.Tensor
    """By new token: the step's row that it belongs to, and its position."""
    sight: Sight
    parts: tuple[QueryRows, ...]
    """Rows with one query, and the others: they are cut differently."""
    known: dict[HeadShape, None]
    """Head shapes of the kind's layers: added when a layer first attends, and planned in advance from then on."""
    launches: dict[HeadShape, tuple[Launch, ...]] = field(default_factory=dict)
    is_invariant: bool = False

    def launch(self, heads: HeadShape) -> tuple[Launch, ...]:
        if heads not in self.launches:
            self.known[heads] = None
            self.cut(heads, DirectUpload(self.rows.device))
        return self.launches[heads]

    def cut(self, heads: HeadShape, upload: Upload, padding: Padding | None = None) -> None:
        processors = processors_of(self.rows.device)
        splits = None if padding is None else padding.is_split
        if self.is_invariant:
            cuts = [plan_invariant(upload, rows, self.sight, heads, processors, splits) for rows in self.parts]
        elif splits is None:
            cuts = [plan_onto(upload, rows, self.sight, heads, processors) for rows in self.parts]
        else:
            cuts = [plan_recorded(upload, self.parts[0], self.sight, heads, processors, splits)]
        self.launches[heads] = tuple(cuts)


class Triton:
    """Kernels read whole pages of any size. Without a GPU they run under Triton's interpreter (TRITON_INTERPRET=1)."""

    name = "triton"
    accepts = Accepts(
        bounds_masks=True,
        devices=frozenset({"cpu" if INTERPRETED.value else "cuda"}),
        dtypes=frozenset({"bf16", "fp16", "fp32", "fp8"}),
        states=STATES,
        adds_slopes=True,
    )

    def __init__(self, is_invariant: bool = False) -> None:
        """`is_invariant`: a row's results do not depend on other rows, nor on how its tokens are divided into steps."""
        self.is_invariant = is_invariant
        self._heads: dict[str, dict[HeadShape, None]] = {}
        """By the kind's name."""

    def prepare(self, plan: KindPlan, table: TableView, packed: Packed, device: torch.device) -> KindBatch:
        del device
        step, kind, upload = packed.step, plan.kind, packed.upload
        if kind.keeps is Keeps.STATE:
            return KindBatch({}, kernel=state_rows(packed, table))
        columns = most = table.addresses.shape[2]
        if kind.grows:
            columns = min(columns, int((-(-(step.starts + step.counts) // plan.page_tokens)).max(initial=1)))
        addresses = upload.table(packed.addresses(table, columns), most)
        groups = (addresses[:, group] for group in range(addresses.shape[1]))
        tables = tuple(
            DeviceTable(group, plan.page_tokens, table.sink_columns, wraps=not kind.grows) for group in groups
        )
        index, positions = (upload(values.astype(np.int32)) for values in (packed.index, packed.positions))
        parts, known = _parts(step, packed.begins), self._heads.setdefault(kind.name, {})
        kernel = KernelKind(
            kind.holds_latents,
            tables,
            index,
            positions,
            sight_of(plan),
            parts,
            known,
            is_invariant=self.is_invariant,
        )
        for heads in known:
            kernel.cut(heads, upload, packed.padding)
        return KindBatch({}, kernel=kernel)

    def is_split(self, plan: KindPlan, step: Step, device: torch.device) -> bool:
        """Whether a step of one token for each row gains by cutting rows into pieces."""
        rows, sight, processors = _parts(step, np.arange(len(step.rows)))[0], sight_of(plan), processors_of(device)
        if self.is_invariant:
            return invariant_pieces(rows, sight) > 0
        return any(is_split(rows, sight, heads, processors) for heads in self._heads.get(plan.kind.name, ()))

    def fits(self, plan: KindPlan, step: Step, device: torch.device) -> bool:
        """Whether a recorded step has room for the pieces of these rows. Pieces without a fixed length always fit."""
        rows, sight = _parts(step, np.arange(len(step.rows)))[0], sight_of(plan)
        return not self.is_invariant or invariant_fits(rows, sight, processors_of(device))

    def attend(
        self, kind: KindBatch, parts: Pair[PartView], query: torch.Tensor, new: Pair[torch.Tensor], scores: Scores
    ) -> torch.Tensor:
        """For latents, keys and values are latents and rotary keys; queries and results are in the latents' space."""
        step = kind.kernel
        assert isinstance(step, KernelKind), "this backend prepared the step"
        held = views_of(parts, step.is_latent)
        is_written = step.is_latent or step.is_invariant or any(rows.counts.max() > 1 for rows in step.parts)
        if is_written:
            write(*new, held, step.tables[parts[0].group], step.rows, step.positions)
        width, other = (tensor.shape[2] for tensor in new)
        value_width, rope_width = (width, other) if step.is_latent else (other, 0)
        heads = HeadShape(query.shape[1], held.key.shape[2], width, value_width, held.key.element_size(), rope_width)
        out = query.new_empty(len(query), heads.query, heads.value_width)
        self.attend_rows(step, heads, parts, query.contiguous(), scores, out, None if is_written else new)
        return out

    def attend_rows(
        self, step: KernelKind, heads: HeadShape, parts: Pair[PartView], query: torch.Tensor, scores: Scores,
        out: torch.Tensor, new: Pair[torch.Tensor] | None,
    ) -> None:  # fmt: skip
        """Writes the results of all queries to `out`. `new`: keys and values of rows with one query each, if they have
        not been written yet."""
        held, table = views_of(parts, step.is_latent), step.tables[parts[0].group]
        for launch in step.launch(heads):
            attend(query, held, table, launch, scores, out, new)

    def convolve(
        self,
        kind: KindBatch,
        columns: Columns,
        inputs: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        has_silu: bool,
    ) -> torch.Tensor:
        return convolve(_state_rows(kind), columns, inputs, weight, bias, has_silu)

    def recur(self, kind: KindBatch, matrices: Matrices, tokens: Recurrence) -> torch.Tensor:
        return recur(_state_rows(kind), matrices, tokens)


def views_of(parts: Pair[PartView], is_latent: bool) -> LayerViews:
    """Keys and values; or latents, which are both, and rotary keys."""
    first, second = parts
    if is_latent:
        return LayerViews.latent(first.tensor, second.tensor, row_scales(first) if is_quantised(first) else None)
    if first.scales is not None:
        return LayerViews(first.tensor, second.tensor, key_scales=first.scales, value_scales=second.scales)
    return LayerViews(first.tensor, second.tensor)


def _state_rows(kind: KindBatch) -> StateRows:
    assert isinstance(kind.kernel, StateRows), "this backend prepared the step"
    return kind.kernel


def processors_of(device: torch.device) -> int:
    if device.type != "cuda":
        return INTERPRETER_PROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _parts(step: Step, begins: np.ndarray) -> tuple[QueryRows, ...]:
    chosen = (np.flatnonzero(step.counts == 1), np.flatnonzero(step.counts > 1))
    return tuple(QueryRows(rows, begins[rows], step.starts[rows], step.counts[rows]) for rows in chosen if len(rows))


def sight_of(plan: KindPlan) -> Sight:
    return Sight(**(plan.kind.mask_bounds or {}))
