"""From tensors to launches of paged attention.

First `plan`, once a step and kind: numpy, then one upload. Then `attend`, once a layer: it reads nothing back, so
it may be recorded in a graph.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from quire.worker.attention import Scores
from quire.worker.kernels.paged import attend_items, join_pieces
from quire.worker.kernels.recorded import fixed_work
from quire.worker.kernels.shape import Memory, Shape, Table, Tiles, part_shape
from quire.worker.kernels.tiles import Heads, piece_tokens_for, tiles_for
from quire.worker.kernels.work import Rows, Sight, Work, blocks_of, cut, lengths_of
from quire.worker.uploads import Direct, Upload

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


def plan(rows: Rows, sight: Sight, heads: Heads, processors: int, device: torch.device) -> Launch:
    return plan_onto(Direct(device), rows, sight, heads, processors)


def plan_onto(upload: Upload, rows: Rows, sight: Sight, heads: Heads, processors: int) -> Launch:
    """Cut so that all processors work; a batch of rows that compute much more than others is better cut in two."""
    queries = int(rows.counts.max(initial=1))
    tiles, group = tiles_for(queries, heads)
    blocks = blocks_of(rows, queries_of_block(queries, tiles, group))
    piece_tokens = piece_tokens_for(lengths_of(blocks, sight), heads.query // group, tiles, processors)
    work = cut(blocks, sight, piece_tokens)
    return _launch(upload, work, work.slots, sight, tiles, group, is_alike=queries == 1)


def plan_recorded(upload: Upload, rows: Rows, sight: Sight, heads: Heads, processors: int, splits: bool) -> Launch:
    """Of rows with one query each: the same launch whatever they hold."""
    tiles, group = tiles_for(1, heads)
    work, slots = fixed_work(rows, sight, heads, processors, splits)
    return _launch(upload, work, slots, sight, tiles, group, is_alike=True)


def launch_of(rows: Rows, sight: Sight, tiles: Tiles, group: int, piece_tokens: int, device: torch.device) -> Launch:
    queries = int(rows.counts.max(initial=1))
    work = cut(blocks_of(rows, queries_of_block(queries, tiles, group)), sight, piece_tokens)
    return _launch(Direct(device), work, work.slots, sight, tiles, group, is_alike=queries == 1)


def _launch(
    upload: Upload, work: Work, slots: int, sight: Sight, tiles: Tiles, group: int, *, is_alike: bool
) -> Launch:
    return Launch(upload(work.items), upload(work.joins), slots, tiles, sight, group, is_alike)


def queries_of_block(queries: int, tiles: Tiles, group: int) -> int:
    return 1 if queries == 1 else tiles.rows // group


def attend(
    query: torch.Tensor, memory: Memory, table: Table, launch: Launch, scores: Scores, out: torch.Tensor
) -> None:
    """(token, head, width) of packed queries over pages, into `out`. Queries of latents end in their rotary part."""
    shape, tiles = _shape(query, memory, table, launch, scores), launch.tiles
    programs = query.shape[1] // shape.group
    lines = launch.slots * programs * tiles.rows
    partial = torch.empty(lines * shape.values.width, dtype=torch.float32, device=out.device)
    exponents = torch.empty(lines, dtype=torch.float32, device=out.device)
    sinks = query if scores.sinks is None else scores.sinks
    rope = memory.key if memory.rope is None else memory.rope
    key_scales = memory.row_scales if memory.key_scales is None else memory.key_scales
    scales = [exponents if given is None else given for given in (key_scales, memory.value_scales)]
    if len(launch.items):
        attend_items[(programs, len(launch.items))](
            query, memory.key, memory.value, rope, out, partial, exponents, table.addresses, launch.items, sinks,
            *scales, scores.scale, scores.softcap or 1.0, query.stride(0), out.stride(0), table.addresses.stride(0),
            shape, tiles.tokens, tiles.is_peeled, num_warps=tiles.warps, num_stages=tiles.stages,
        )  # fmt: skip
    if len(launch.joins):
        block_rows = shape.group if shape.is_alike else shape.rows
        join_pieces[(block_rows, programs, len(launch.joins))](
            partial, exponents, launch.joins, out, sinks, out.stride(0), shape, PIECES_AT_ONCE, num_warps=2
        )


def _shape(query: torch.Tensor, memory: Memory, table: Table, launch: Launch, scores: Scores) -> Shape:
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
        is_alike=launch.is_alike,
    )
