"""From tensors to launches over state pages. `rows_of` once a step, the others once a layer; they read nothing back."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
import triton

from quire.core.step import Step, TableView
from quire.plan.layout import GRANULE_BYTES
from quire.worker.batch import Packed, pack
from quire.worker.kernels.convolution import convolve_chunks, convolve_rows
from quire.worker.kernels.recurrence import recur_rows, scan_chunks, solve_chunks
from quire.worker.kernels.shape import padded
from quire.worker.recurrent import Columns, Matrices, Recurrence
from quire.worker.uploads import Direct

CHUNK_TOKENS = 64
FEW_TOKENS = 16
"""Up to so many, tokens go one by one."""
TILE_NUMBERS = 16384
"""Of a state, in one program's registers, where tokens go one by one."""
FEW_VALUES, MANY_VALUES = 32, 64
"""Of each head, in one program, where tokens go in chunks: few while programs are fewer than a GPU's processors."""
MANY_PROGRAMS = 132
CHANNELS = 256
"""Of a convolution, in one program."""
TOKENS_AT_ONCE = 8
"""Of a chunk's convolution."""
ROW_FIELDS = ("table_row", "place", "count", "known", "first_chunk")
CHUNK_FIELDS = ("table_row", "place", "first", "count")


@dataclass(frozen=True, slots=True, eq=False)
class StateRows:
    """The rows of a step, on the device."""

    addresses: torch.Tensor
    """(row, group, page): the state's page, then one for each draft."""
    few: torch.Tensor
    """(row, ROW_FIELDS): few tokens, or drafts among them. A row without tokens touches nothing."""
    many: torch.Tensor
    chunks: torch.Tensor
    """(chunk, CHUNK_FIELDS): of the rows with many."""


def rows_of(step: Step, table: TableView, device: torch.device) -> StateRows:
    return state_rows(pack(step, Direct(device)), table)


def state_rows(packed: Packed, table: TableView) -> StateRows:
    step, begins = packed.step, packed.begins
    drafts = np.zeros_like(step.counts) if step.drafts is None else step.drafts
    chunks = np.where((step.counts > FEW_TOKENS) & (drafts == 0), -(-step.counts // CHUNK_TOKENS), 0)
    each = np.arange(len(step.rows))
    fields = np.stack([each, begins, step.counts, step.counts - drafts, np.cumsum(chunks) - chunks], axis=1)
    pages = packed.addresses(table, int(drafts.max(initial=0)) + 1)
    row = np.repeat(each, chunks)
    first = (np.arange(len(row)) - fields[row, 4]) * CHUNK_TOKENS
    counts = np.minimum(CHUNK_TOKENS, step.counts[row] - first)
    cut = np.stack([row, begins[row], first, counts], axis=1)
    few, many = fields[chunks == 0], fields[chunks > 0]
    return StateRows(*(packed.upload(values.astype(np.int32)) for values in (pages, few, many, cut)))


def convolve(
    rows: StateRows,
    columns: Columns,
    inputs: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    has_silu: bool,
) -> torch.Tensor:
    """(token, channel) in, the same out. `weight` is (channel, tap)."""
    channels, taps = weight.shape
    assert taps <= FEW_TOKENS, "a row with many tokens reads its page for the first of them alone"
    out = torch.empty(inputs.shape, dtype=inputs.dtype, device=inputs.device)
    addresses = rows.addresses[:, columns.group]
    ends = (bias is not None, has_silu)
    biases = weight if bias is None else bias
    steps = (channels, inputs.stride(0), inputs.stride(1), out.stride(0))
    blocks = triton.cdiv(channels, CHANNELS)
    if len(rows.many):
        convolve_chunks[(len(rows.chunks), blocks)](
            inputs, weight.t().contiguous(), biases, out, rows.chunks, *steps, taps, TOKENS_AT_ONCE, CHANNELS, *ends
        )
    for some, is_long in ((rows.few, False), (rows.many, True)):
        if len(some):
            convolve_rows[(len(some), blocks)](
                inputs, weight.contiguous(), biases, out, columns.pages, addresses, columns.offsets, some, *steps,
                addresses.stride(0), columns.granule, taps, padded(taps, 1), CHANNELS, *ends, is_long,
            )  # fmt: skip
    return out


@dataclass(frozen=True, slots=True)
class MatrixShape:
    """What kernels are compiled for. Steps count numbers."""

    heads: int
    share: int
    """Heads with one query and key."""
    keys: int
    padded_keys: int
    values: int
    block_values: int
    key_step: int
    value_step: int
    granule: int
    has_delta: bool
    is_normalised: bool
    has_skip: bool
    fades_by_key: bool
    precision: str
    chunk: int = CHUNK_TOKENS
    doublings: int = CHUNK_TOKENS.bit_length() - 1


def recur(rows: StateRows, matrices: Matrices, tokens: Recurrence) -> torch.Tensor:
    """(token, head, value) of all rows."""
    value = tokens.value
    out = torch.empty(value.shape, dtype=value.dtype, device=value.device)
    shape = _shape(matrices, tokens)
    state, addresses = matrices.part.tensor, rows.addresses[:, matrices.part.group]
    skip = value if tokens.skip is None else tokens.skip
    strides = (tokens.query.stride(0), tokens.key.stride(0), value.stride(0), addresses.stride(0))
    given = (tokens.query, tokens.key, value, tokens.decay, tokens.weight, skip)
    blocks = triton.cdiv(shape.values, shape.block_values)
    one_by_one = (rows.few, rows.many) if shape.fades_by_key else (rows.few,)
    for some in one_by_one:
        if len(some):
            recur_rows[(blocks, shape.heads, len(some))](
                *given, out, state, addresses, some, tokens.scale, *strides, shape, num_warps=4
            )
    if len(rows.many) and not shape.fades_by_key:
        _recur_in_chunks(rows, tokens, shape, given, (out, state, addresses), strides)
    return out


def _recur_in_chunks(
    rows: StateRows,
    tokens: Recurrence,
    shape: MatrixShape,
    given: tuple[torch.Tensor, ...],
    kept: tuple[torch.Tensor, ...],
    strides: tuple[int, ...],
) -> None:
    size = (len(rows.chunks), shape.heads, CHUNK_TOKENS, CHUNK_TOKENS)
    mixing = torch.empty(size, dtype=tokens.query.dtype, device=tokens.query.device)
    solution = torch.empty_like(mixing) if shape.has_delta else mixing
    solve_chunks[(len(rows.chunks), shape.heads)](
        tokens.query, tokens.key, tokens.decay, tokens.weight, mixing, solution, rows.chunks, tokens.scale,
        *strides[:2], shape, num_warps=4,
    )  # fmt: skip
    is_wide = shape.has_delta and len(rows.many) * shape.heads * shape.values >= MANY_PROGRAMS * MANY_VALUES
    narrow = replace(shape, block_values=min(padded(shape.values), MANY_VALUES if is_wide else FEW_VALUES))
    blocks, warps = triton.cdiv(shape.values, narrow.block_values), 8 if shape.has_delta else 4
    scan_chunks[(blocks, shape.heads, len(rows.many))](
        *given, mixing, solution, *kept, rows.many, tokens.scale, *strides, narrow, num_warps=warps
    )


def _shape(matrices: Matrices, tokens: Recurrence) -> MatrixShape:
    _, heads, values = tokens.value.shape
    keys = tokens.key.shape[2]
    dtype = matrices.part.tensor.dtype
    return MatrixShape(
        heads=heads,
        share=heads // tokens.key.shape[1],
        keys=keys,
        padded_keys=padded(keys),
        values=values,
        block_values=min(padded(values), max(16, TILE_NUMBERS // padded(keys))),
        key_step=values if matrices.keys_first else 1,
        value_step=1 if matrices.keys_first else keys,
        granule=GRANULE_BYTES // dtype.itemsize,
        has_delta=tokens.has_delta,
        is_normalised=tokens.is_normalised,
        has_skip=tokens.skip is not None,
        fades_by_key=tokens.decay.dim() == 3,
        precision="ieee" if tokens.query.dtype == torch.float32 else "tf32",
    )
