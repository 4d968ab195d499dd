"""From tensors to launches of paged attention.

plan(rows, …)    once a step and kind: numpy, then one upload
attend(…)        once a layer: reads nothing back, so it may be recorded in a graph
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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
    group: int
    is_alike: bool


def plan(rows: Rows, sight: Sight, group: int, tiles: Tiles, piece_tokens: int, device: torch.device) -> Launch:
    is_alike = bool((rows.counts <= 1).all())
    work = cut(rows, sight, 1 if is_alike else tiles.rows // group, piece_tokens)
    items, joins = (torch.from_numpy(values).to(device) for values in (work.items, work.joins))
    return Launch(items, joins, work.slots, tiles, sight, group, is_alike)


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """A layer's parts, as views (address, slot, head, number) of the arena."""

    key: torch.Tensor
    value: torch.Tensor
    rope: torch.Tensor | None = None
    """Beside a latent, which is key and value at once."""

    @classmethod
    def latent(cls, latent: torch.Tensor, rope: torch.Tensor) -> Memory:
        return cls(latent, latent, rope)


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
    if len(launch.items):
        attend_items[(programs, len(launch.items))](
            query, memory.key, memory.value, rope, out, partial, exponents, table.addresses, launch.items, sinks,
            scores.scale, scores.softcap or 1.0, query.stride(0), out.stride(0), table.addresses.stride(0),
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
    keys = part_shape(memory.key)
    return Shape(
        keys=replace(keys, head=0) if is_latent else keys,
        values=part_shape(memory.value),
        ropes=keys if memory.rope is None else part_shape(memory.rope),
        is_latent=is_latent,
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
