"""From tensors to launches of paged attention.

`plan` runs once per step and kind: numpy, then one upload. `attend` runs once per layer: it reads nothing back, so a
graph may record it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from quire.worker.backends.attention import Scores
from quire.worker.kernels.latents import attend_latents
from quire.worker.kernels.paged import attend_items, join_pieces
from quire.worker.kernels.recorded import fixed_work, invariant_work
from quire.worker.kernels.shape import DeviceTable, LayerViews, Shape, Tiles, part_shape
from quire.worker.kernels.tiles import WIDE_LATENT, HeadShape, invariant_tiles, piece_tokens_for, tiles_for
from quire.worker.kernels.work import QueryRows, Sight, Work, blocks_of, cut, invariant_piece_tokens, lengths_of
from quire.worker.pages.uploads import DirectUpload, Upload

PIECES_AT_ONCE = 16


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """Work on the device, for every layer of a kind."""

    items: torch.Tensor
    joins: torch.Tensor
    slots: int
    tiles: Tiles
    sight: Sight
    group: int
    is_alike: bool
    is_invariant: bool = False


def plan(rows: QueryRows, sight: Sight, heads: HeadShape, processors: int, device: torch.device) -> Launch:
    return plan_onto(DirectUpload(device), rows, sight, heads, processors)


def plan_onto(upload: Upload, rows: QueryRows, sight: Sight, heads: HeadShape, processors: int) -> Launch:
    """Cuts the work so that all processors are busy. The caller separates rows with many queries."""
    queries = int(rows.counts.max(initial=1))
    tiles, group = tiles_for(queries, heads)
    blocks = blocks_of(rows, queries_of_block(queries, tiles, group))
    piece_tokens = piece_tokens_for(lengths_of(blocks, sight), heads.query // group, tiles, processors)
    work = cut(blocks, sight, piece_tokens)
    return _launch(upload, work, work.slots, sight, tiles, group, is_alike=queries == 1)


def plan_recorded(
    upload: Upload, rows: QueryRows, sight: Sight, heads: HeadShape, processors: int, splits: bool
) -> Launch:
    """For rows with one query each: the same launch whatever they hold."""
    tiles, group = tiles_for(1, heads)
    work, slots = fixed_work(rows, sight, heads, processors, splits)
    return _launch(upload, work, slots, sight, tiles, group, is_alike=True)


def plan_invariant(
    upload: Upload, rows: QueryRows, sight: Sight, heads: HeadShape, processors: int, splits: bool | None = None
) -> Launch:
    """Cuts the work by what queries see, and by nothing else. `splits`: for rows with one query each, the same launch
    whatever they hold."""
    tiles, group = invariant_tiles(heads)
    if splits is None:
        blocks = blocks_of(rows, tiles.rows // group)
        work = cut(blocks, sight, invariant_piece_tokens(blocks, sight))
        slots = work.slots
    else:
        work, slots = invariant_work(rows, sight, processors, splits)
    return replace(_launch(upload, work, slots, sight, tiles, group, is_alike=False), is_invariant=True)


def launch_of(
    rows: QueryRows, sight: Sight, tiles: Tiles, group: int, piece_tokens: int, device: torch.device
) -> Launch:
    queries = int(rows.counts.max(initial=1))
    work = cut(blocks_of(rows, queries_of_block(queries, tiles, group)), sight, piece_tokens)
    return _launch(DirectUpload(device), work, work.slots, sight, tiles, group, is_alike=queries == 1)


def _launch(
    upload: Upload, work: Work, slots: int, sight: Sight, tiles: Tiles, group: int, *, is_alike: bool
) -> Launch:
    return Launch(upload(work.items), upload(work.joins), slots, tiles, sight, group, is_alike)


def queries_of_block(queries: int, tiles: Tiles, group: int) -> int:
    return 1 if queries == 1 else tiles.rows // group


def attend(
    query: torch.Tensor,
    memory: LayerViews,
    table: DeviceTable,
    launch: Launch,
    scores: Scores,
    out: torch.Tensor,
    new: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> None:
    """(token, head, width) of packed queries over pages, into `out`. Queries of latents end in their rotary part.
    `new`: keys and values of rows with one query each, which are not in their slots yet."""
    shape = _shape(query, memory, table, launch, scores, new is not None)
    programs = query.shape[1] // shape.group
    lines = launch.slots * programs * launch.tiles.rows
    partial = torch.empty(lines * shape.values.width, dtype=torch.float32, device=out.device)
    exponents = torch.empty(lines, dtype=torch.float32, device=out.device)
    sinks = query if scores.sinks is None else scores.sinks
    if len(launch.items) and _in_quarters(memory, shape):
        _read_latents(query, memory, table, launch, scores, out, (partial, exponents), shape)
    elif len(launch.items):
        _read_items(query, memory, table, launch, scores, out, (partial, exponents), shape, new)
    if len(launch.joins):
        block_rows = shape.group if shape.is_alike else shape.rows
        join_pieces[(block_rows, programs, len(launch.joins))](
            partial, exponents, launch.joins, out, sinks, out.stride(0), shape, PIECES_AT_ONCE, num_warps=2
        )


def _read_items(
    query: torch.Tensor, memory: LayerViews, table: DeviceTable, launch: Launch, scores: Scores, out: torch.Tensor,
    partial: tuple[torch.Tensor, torch.Tensor], shape: Shape, new: tuple[torch.Tensor, torch.Tensor] | None,
) -> None:  # fmt: skip
    tiles, addresses = launch.tiles, table.addresses
    by_head = [one for one in (scores.sinks, scores.slopes) if one is not None] or [query]
    rope = memory.key if memory.rope is None else memory.rope
    key_scales = memory.row_scales if memory.key_scales is None else memory.key_scales
    scales = [partial[1] if given is None else given for given in (key_scales, memory.value_scales)]
    attend_items[(query.shape[1] // shape.group, len(launch.items))](
        query, memory.key, memory.value, rope, out, *partial, addresses, launch.items,
        by_head[0] if len(by_head) == 1 else torch.cat(by_head), *scales,
        *(new or (query, query)), scores.scale, scores.softcap or 1.0, query.stride(0), out.stride(0),
        addresses.stride(0), *_strides(new), shape, tiles.tokens, tiles.is_peeled,
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip


def _read_latents(
    query: torch.Tensor, memory: LayerViews, table: DeviceTable, launch: Launch, scores: Scores, out: torch.Tensor,
    partial: tuple[torch.Tensor, torch.Tensor], shape: Shape,
) -> None:  # fmt: skip
    tiles, addresses = launch.tiles, table.addresses
    attend_latents[(query.shape[1] // shape.group, len(launch.items))](
        query, memory.key, memory.rope, out, *partial, addresses, launch.items, scores.scale,
        query.stride(0), out.stride(0), addresses.stride(0), shape, tiles.tokens,
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip


def _in_quarters(memory: LayerViews, shape: Shape) -> bool:
    is_plain = memory.row_scales is None and not (shape.has_softcap or shape.has_sink_logits or shape.has_slopes)
    return shape.is_latent and is_plain and shape.keys.padded >= WIDE_LATENT


def _strides(new: tuple[torch.Tensor, torch.Tensor] | None) -> tuple[int, ...]:
    return (0, 0, 0, 0) if new is None else tuple(tensor.stride(axis) for tensor in new for axis in (0, 1))


def _shape(
    query: torch.Tensor, memory: LayerViews, table: DeviceTable, launch: Launch, scores: Scores, writes: bool
) -> Shape:
    sight = launch.sight
    is_latent = memory.rope is not None
    keys = part_shape(memory.key, memory.row_scales)
    return Shape(
        keys=replace(keys, head=0) if is_latent else keys,
        values=part_shape(memory.value, memory.row_scales),
        ropes=keys if memory.rope is None else part_shape(memory.rope),
        is_latent=is_latent,
        has_scales=memory.key_scales is not None,
        query_head=query.stride(1),
        page_tokens=table.page_tokens,
        sink_columns=table.sink_columns,
        ring_columns=table.ring_columns,
        group=launch.group,
        rows=launch.tiles.rows,
        window=sight.window,
        chunk=sight.chunk,
        sinks=sight.sinks,
        has_softcap=scores.softcap is not None,
        has_sink_logits=scores.sinks is not None,
        has_slopes=scores.slopes is not None,
        is_alike=launch.is_alike,
        writes=writes,
        is_invariant=launch.is_invariant,
    )
