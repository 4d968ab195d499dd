"""From tensors to launches over state pages. `state_rows` runs once per step, the others once per layer.

row        ├──────── piece ─────────┼──── piece ────┤    of its new tokens, cut at captures
chunks     ├── 64 ──┼── 64 ──┼─ 22 ─┼── 64 ──┼─ 31 ─┤    of a piece
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
import triton

from quire.core.step import Step, TableView
from quire.core.units import round_up
from quire.plan.layout import GRANULE_BYTES
from quire.worker.backends.batch import Packed, pack
from quire.worker.backends.recurrent import Columns, Matrices, Recurrence
from quire.worker.kernels.convolution import capture_columns, convolve_chunks, convolve_rows
from quire.worker.kernels.recurrence import recur_rows, scan_chunks, solve_chunks
from quire.worker.kernels.shape import pad
from quire.worker.pages.captures import KindCaptures
from quire.worker.pages.uploads import DirectUpload

CHUNK_TOKENS = 64
FEW_TOKENS = 16
"""Up to this many, tokens are computed one by one."""
TILE_NUMBERS = 16384
"""Numbers of a state in one program's registers, where tokens are computed one by one."""
FEW_VALUES, MANY_VALUES = 32, 64
"""Values of a head in one program, where tokens are computed in chunks: few while there are fewer programs than
processors."""
MANY_PROGRAMS = 132
CHANNELS = 256
"""Channels of a convolution in one program."""
TOKENS_AT_ONCE = 8
"""Tokens of a chunk's convolution in one pass."""
ROW_FIELDS = ("table_row", "place", "count", "known", "first_chunk")
CHUNK_FIELDS = ("table_row", "place", "first", "count")
CAPTURE_FIELDS = ("table_row", "place", "count")
NOT_CAPTURED = -1
ALIGNED_NUMBERS = 4
"""int32 numbers in 16 bytes: kernels are compiled again where a group's numbers begin elsewhere."""
Pieces = tuple[np.ndarray, np.ndarray, np.ndarray]
"""(row, first, end): the new tokens of each row, cut at its captures. Arrays of one length."""


@dataclass(frozen=True, slots=True, eq=False)
class StateCaptures:
    """Captures of a step, on the device."""

    rows: torch.Tensor
    """(capture, CAPTURE_FIELDS)"""
    pages: torch.Tensor
    """(group, capture): addresses, padded."""
    by_token: torch.Tensor
    """(group, token): the page for the state after each of the packed tokens, or NOT_CAPTURED; padded."""
    first_pieces: torch.Tensor
    """(row with many tokens, and one more): where its pieces begin in `piece_ends`."""
    piece_ends: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class StateRows:
    """The rows of a step, on the device."""

    addresses: torch.Tensor
    """(row, group, page): the state's page, then one for each draft."""
    few: torch.Tensor
    """(row, ROW_FIELDS): rows with few tokens, or with drafts. A row without tokens touches nothing."""
    many: torch.Tensor
    chunks: torch.Tensor
    """(chunk, CHUNK_FIELDS): of the rows with many tokens."""
    captures: StateCaptures | None = None


def rows_of(step: Step, table: TableView, device: torch.device, captured: KindCaptures | None = None) -> StateRows:
    return state_rows(replace(pack(step, DirectUpload(device)), captures=captured), table)


def state_rows(packed: Packed, table: TableView) -> StateRows:
    step, begins, upload = packed.step, packed.begins, packed.upload
    drafts = np.zeros_like(step.counts) if step.drafts is None else step.drafts
    is_long = (step.counts > FEW_TOKENS) & (drafts == 0)
    each, pieces = np.arange(len(step.rows)), _pieces(step.counts, packed.captures)
    row, first, counts = _chunks(pieces, is_long)
    chunks = np.bincount(row, minlength=len(each))
    fields = np.stack([each, begins, step.counts, step.counts - drafts, np.cumsum(chunks) - chunks], axis=1)
    pages = packed.addresses(table, int(drafts.max(initial=0)) + 1)
    cut = np.stack([row, begins[row], first, counts], axis=1)
    arrays = (pages, fields[~is_long], fields[is_long], cut)
    addresses, few, many, chunk_rows = (upload(values.astype(np.int32)) for values in arrays)
    captures = None if packed.captures is None else _captures(packed, packed.captures, pieces, is_long)
    return StateRows(addresses, few, many, chunk_rows, captures)


def _pieces(counts: np.ndarray, captured: KindCaptures | None) -> Pieces:
    rows, ends = np.arange(len(counts)), counts
    if captured is None:
        return rows, np.zeros_like(counts), ends
    rows, ends = np.concatenate([rows, captured.entries]), np.concatenate([ends, captured.tokens])
    order = np.lexsort((ends, rows))
    rows, ends = rows[order], ends[order]
    firsts = np.where(np.diff(rows, prepend=-1) == 0, np.roll(ends, 1), 0)
    there = ends > firsts  # a capture at a row's end adds no piece
    return rows[there], firsts[there], ends[there]


def _chunks(pieces: Pieces, is_long: np.ndarray) -> tuple[np.ndarray, ...]:
    """(row, first of its new tokens, count) of every chunk of rows with many tokens."""
    rows, firsts, ends = pieces
    if not is_long.any():
        return rows[:0], firsts[:0], ends[:0]
    chunks = np.where(is_long[rows], -(-(ends - firsts) // CHUNK_TOKENS), 0)
    piece = np.repeat(np.arange(len(rows)), chunks)
    first = firsts[piece] + (np.arange(len(piece)) - (np.cumsum(chunks) - chunks)[piece]) * CHUNK_TOKENS
    return rows[piece], first, np.minimum(CHUNK_TOKENS, ends[piece] - first)


def _captures(packed: Packed, captured: KindCaptures, pieces: Pieces, is_long: np.ndarray) -> StateCaptures:
    begins, addresses = packed.begins[captured.entries], captured.addresses.T
    rows = np.stack([captured.entries, begins, captured.tokens], axis=1)
    by_token = np.full((len(addresses), round_up(packed.step.tokens, ALIGNED_NUMBERS)), NOT_CAPTURED)
    by_token[:, begins + captured.tokens - 1] = addresses
    pages = np.pad(addresses, ((0, 0), (0, -len(begins) % ALIGNED_NUMBERS)))
    each = np.bincount(pieces[0], minlength=len(is_long))[is_long]
    first_pieces, ends = np.concatenate([[0], np.cumsum(each)]), pieces[2][is_long[pieces[0]]]
    arrays = (rows, pages, by_token, first_pieces, ends)
    return StateCaptures(*(packed.upload(values.astype(np.int32)) for values in arrays))


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
    if rows.captures is not None:  # before the rows' own pages are written: they hold the inputs before the first token
        capture_columns[(len(rows.captures.rows), blocks)](
            inputs, columns.pages, addresses, columns.offsets, rows.captures.rows, rows.captures.pages[columns.group],
            *steps[:3], addresses.stride(0), columns.granule, taps, pad(taps, 1), CHANNELS,
        )  # fmt: skip
    for some, is_long in ((rows.few, False), (rows.many, True)):
        if len(some):
            convolve_rows[(len(some), blocks)](
                inputs, weight.contiguous(), biases, out, columns.pages, addresses, columns.offsets, some, *steps,
                addresses.stride(0), columns.granule, taps, pad(taps, 1), CHANNELS, *ends, is_long,
            )  # fmt: skip
    return out


@dataclass(frozen=True, slots=True)
class MatrixShape:
    """What kernels are compiled for. Strides count numbers."""

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
    has_captures: bool
    chunk: int = CHUNK_TOKENS
    doublings: int = CHUNK_TOKENS.bit_length() - 1


def recur(rows: StateRows, matrices: Matrices, tokens: Recurrence) -> torch.Tensor:
    """(token, head, value) of all rows."""
    value = tokens.value
    out = torch.empty(value.shape, dtype=value.dtype, device=value.device)
    shape = _shape(matrices, tokens, rows.captures is not None)
    state, addresses = matrices.part.tensor, rows.addresses[:, matrices.part.group]
    captured = addresses if rows.captures is None else rows.captures.by_token[matrices.part.group]
    skip = value if tokens.skip is None else tokens.skip
    strides = (tokens.query.stride(0), tokens.key.stride(0), value.stride(0), addresses.stride(0))
    given = (tokens.query, tokens.key, value, tokens.decay, tokens.weight, skip)
    blocks = triton.cdiv(shape.values, shape.block_values)
    one_by_one = (rows.few, rows.many) if shape.fades_by_key else (rows.few,)
    for some in one_by_one:
        if len(some):
            recur_rows[(blocks, shape.heads, len(some))](
                *given, out, state, addresses, captured, some, tokens.scale, *strides, shape, num_warps=4
            )
    if len(rows.many) and not shape.fades_by_key:
        _recur_in_chunks(rows, tokens, shape, given, (out, state, addresses, captured), strides)
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
    narrow = replace(shape, block_values=min(pad(shape.values), MANY_VALUES if is_wide else FEW_VALUES))
    blocks, warps = triton.cdiv(shape.values, narrow.block_values), 8 if shape.has_delta else 4
    captures = rows.captures
    pieces = (rows.many, rows.many) if captures is None else (captures.first_pieces, captures.piece_ends)
    scan_chunks[(blocks, shape.heads, len(rows.many))](
        *given, mixing, solution, *kept, rows.many, *pieces, tokens.scale, *strides, narrow, num_warps=warps
    )


def _shape(matrices: Matrices, tokens: Recurrence, has_captures: bool) -> MatrixShape:
    _, heads, values = tokens.value.shape
    keys = tokens.key.shape[2]
    dtype = matrices.part.tensor.dtype
    return MatrixShape(
        heads=heads,
        share=heads // tokens.key.shape[1],
        keys=keys,
        padded_keys=pad(keys),
        values=values,
        block_values=min(pad(values), max(16, TILE_NUMBERS // pad(keys))),
        key_step=values if matrices.keys_first else 1,
        value_step=1 if matrices.keys_first else keys,
        granule=GRANULE_BYTES // dtype.itemsize,
        has_delta=tokens.has_delta,
        is_normalised=tokens.is_normalised,
        has_skip=tokens.skip is not None,
        fades_by_key=tokens.decay.dim() == 3,
        precision="ieee" if tokens.query.dtype == torch.float32 else "tf32",
        has_captures=has_captures,
    )
