"""From tensors to launches of paged attention.

plan(rows, …)    once a step and kind: numpy, then one upload
attend(…)        once a layer: reads nothing back, so it may be recorded in a graph
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quire.worker.attention import Scores
from quire.worker.kernels.paged import attend_items, join_pieces
from quire.worker.kernels.shape import Shape, Table, Tiles, part_shape
from quire.worker.kernels.work import Rows, Sight, cut

PIECES_AT_ONCE = 16


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """Work on the device, for every layer of a kind."""

    items: torch.Tensor
    joins: torch.Tensor
    slots: int
    tiles: Tiles
    sight: Sight
    is_alike: bool


def plan(rows: Rows, sight: Sight, group: int, tiles: Tiles, piece_tokens: int, device: torch.device) -> Launch:
    is_alike = bool((rows.counts <= 1).all())
    work = cut(rows, sight, 1 if is_alike else tiles.rows // group, piece_tokens)
    items, joins = (torch.from_numpy(values).to(device) for values in (work.items, work.joins))
    return Launch(items, joins, work.slots, tiles, sight, is_alike)


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    table: Table,
    launch: Launch,
    scores: Scores,
    out: torch.Tensor,
) -> None:
    """(token, head, width) of packed queries over (address, slot, key head, width) of pages, into `out`."""
    shape = _shape(query, key, value, table, launch, scores)
    key_heads, tiles = key.shape[2], launch.tiles
    lines = launch.slots * key_heads * tiles.rows
    partial = torch.empty(lines * value.shape[3], dtype=torch.float32, device=out.device)
    exponents = torch.empty(lines, dtype=torch.float32, device=out.device)
    sinks = scores.sinks if scores.sinks is not None else query
    attend_items[(key_heads, len(launch.items))](
        query, key, value, out, partial, exponents, table.addresses, launch.items, sinks, scores.scale,
        scores.softcap or 1.0, query.stride(0), out.stride(0), table.addresses.stride(0), shape, tiles.tokens,
        tiles.is_peeled, num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    if len(launch.joins):
        block_rows = shape.group if shape.is_alike else shape.rows
        join_pieces[(block_rows, key_heads, len(launch.joins))](
            partial, exponents, launch.joins, out, sinks, out.stride(0), shape, PIECES_AT_ONCE, num_warps=2
        )


def _shape(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, table: Table, launch: Launch, scores: Scores
) -> Shape:
    sight = launch.sight
    return Shape(
        keys=part_shape(key),
        values=part_shape(value),
        page_tokens=table.page_tokens,
        sink_columns=table.sink_columns,
        ring_columns=table.ring_columns,
        group=query.shape[1] // key.shape[2],
        rows=launch.tiles.rows,
        window=sight.window,
        chunk=sight.chunk,
        sinks=sight.sinks,
        has_softcap=scores.softcap is not None,
        has_sink_logits=scores.sinks is not None,
        is_alike=launch.is_alike,
    )
