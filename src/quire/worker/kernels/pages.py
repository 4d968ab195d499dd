"""Moves whole pages, and writes new tokens to their slots. Addresses count granules of 256 bytes.

A step copies pages, clears them and writes new tokens. Tests and the bench gather and scatter pages; tiers leave
them to the copy engines (docs/decisions/0017).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from quire.plan.layout import GRANULE_BYTES
from quire.worker.kernels.shape import DeviceTable, LayerViews, SlotShape, pad, part_shape
from quire.worker.kernels.tile import LARGEST_EIGHT, to_eight, token_addresses

WORDS_OF_GRANULE = GRANULE_BYTES // 4
GRANULES_AT_ONCE = 32
WORDS_AT_ONCE = 1024
LEAST_SCALE = tl.constexpr(torch.finfo(torch.float32).tiny)


@triton.jit
def move_granules(
    source, source_addresses, target, target_addresses, page_granules, words: tl.constexpr, granules: tl.constexpr,
    source_is_packed: tl.constexpr, target_is_packed: tl.constexpr, clears: tl.constexpr,
):  # fmt: skip
    """Grid (page, block of granules)."""
    granule = tl.program_id(1) * granules + tl.arange(0, granules)
    there = (granule < page_granules)[:, None]
    word = tl.arange(0, words)[None, :]
    to = page_address(target_addresses, page_granules, target_is_packed) + granule
    if clears:
        found = tl.full([granules, words], 0, tl.int32)
    else:
        origin = page_address(source_addresses, page_granules, source_is_packed) + granule
        found = tl.load(source + origin[:, None] * words + word, mask=there)
    tl.store(target + to[:, None] * words + word, found, mask=there)


@triton.jit
def copy_words(source, target, words, block: tl.constexpr):
    """Grid (block,)."""
    word = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(target + word, tl.load(source + word, mask=word < words), mask=word < words)


@triton.jit
def page_address(addresses, page_granules, is_packed: tl.constexpr):
    """Packed pages lie one after another and need no addresses."""
    page = tl.program_id(0)
    return page.to(tl.int64) * page_granules if is_packed else tl.load(addresses + page).to(tl.int64)


@triton.jit
def write_slots(
    keys, values, key_part, value_part, key_scales, value_scales, table, table_rows, positions, table_stride,
    key_token, key_head, value_token, value_head, shape: tl.constexpr,
):  # fmt: skip
    """Grid (token,): its keys and values, all heads. *_token and *_head are strides of what is new."""
    key_shape: tl.constexpr = shape.keys
    value_shape: tl.constexpr = shape.values
    token = tl.program_id(0).to(tl.int64)
    position = tl.load(positions + token).to(tl.int32)
    table += tl.load(table_rows + token).to(tl.int64) * table_stride
    address, slot = token_addresses(table, position, True, shape), position % shape.page_tokens
    copy_heads(keys + token * key_token, key_head, key_part, key_scales, address, slot, shape, key_shape)
    copy_heads(values + token * value_token, value_head, value_part, value_scales, address, slot, shape, value_shape)


@triton.jit
def copy_heads(source, head_stride, part, scales, address, slot, shape: tl.constexpr, part_shape: tl.constexpr):
    head, number = tl.arange(0, shape.padded_heads)[:, None], tl.arange(0, part_shape.padded)[None, :]
    there = (head < shape.heads) & (number < part_shape.width)
    numbers = tl.load(source + head * head_stride + number, mask=there, other=0.0)
    if part_shape.is_quantised:
        numbers = scale_groups(numbers, scales, address, slot, part_shape)
    elif shape.has_scales:
        numbers = to_eight(numbers.to(tl.float32) / tl.load(scales + head, mask=head < shape.heads, other=1.0))
    target = part + address.to(tl.int64) * part_shape.granule + slot * part_shape.step
    tl.store(target + head * part_shape.head + number, numbers.to(part.dtype.element_ty), mask=there)


@triton.jit
def scale_groups(numbers, scales, address, slot, part_shape: tl.constexpr):
    """Scales each group of a token's latent to the range of 8 bits, and stores the scales after the numbers."""
    groups: tl.constexpr = part_shape.padded // part_shape.group_numbers
    cut = tl.reshape(numbers.to(tl.float32), [groups, part_shape.group_numbers])
    factors = tl.maximum(tl.max(tl.abs(cut), 1), LEAST_SCALE * LARGEST_EIGHT) / LARGEST_EIGHT
    group = tl.arange(0, groups)
    place = address.to(tl.int64) * part_shape.scale_granule + slot * part_shape.scale_step
    tl.store(scales + place + group, factors, mask=group < part_shape.groups)
    return tl.reshape(to_eight(cut / factors[:, None]), [1, part_shape.padded])


def carry(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copies all bytes of a dense tensor to another one; either may lie in pinned main memory."""
    source, target = source.view(torch.int32), target.view(torch.int32)
    words = source.numel()
    if words:
        copy_words[(triton.cdiv(words, WORDS_AT_ONCE),)](source, target, words, WORDS_AT_ONCE)


def copy_pages(arena: torch.Tensor, source: torch.Tensor, target: torch.Tensor, page_bytes: int) -> None:
    """No page is both source and target."""
    _move(arena, source, arena, target, page_bytes, len(source))


def clear_pages(arena: torch.Tensor, addresses: torch.Tensor, page_bytes: int) -> None:
    _move(arena, addresses, arena, addresses, page_bytes, len(addresses), clears=True)


def gather_pages(arena: torch.Tensor, addresses: torch.Tensor, page_bytes: int, staging: torch.Tensor) -> None:
    """Copies pages out of the arena, one after another."""
    _move(arena, addresses, staging, None, page_bytes, len(addresses))


def scatter_pages(staging: torch.Tensor, arena: torch.Tensor, addresses: torch.Tensor, page_bytes: int) -> None:
    _move(staging, None, arena, addresses, page_bytes, len(addresses))


def _move(
    source: torch.Tensor,
    source_addresses: torch.Tensor | None,
    target: torch.Tensor,
    target_addresses: torch.Tensor | None,
    page_bytes: int,
    pages: int,
    clears: bool = False,
) -> None:
    granules = page_bytes // GRANULE_BYTES
    if not pages:
        return
    source, target = source.view(torch.int32), target.view(torch.int32)
    move_granules[(pages, triton.cdiv(granules, GRANULES_AT_ONCE))](
        source, source if source_addresses is None else source_addresses,
        target, target if target_addresses is None else target_addresses,
        granules, WORDS_OF_GRANULE, GRANULES_AT_ONCE, source_addresses is None, target_addresses is None, clears,
    )  # fmt: skip


def write(
    keys: torch.Tensor,
    values: torch.Tensor,
    memory: LayerViews,
    table: DeviceTable,
    table_rows: torch.Tensor,
    positions: torch.Tensor,
) -> None:
    """Writes new (token, head, width) to their slots, in one launch. Rows and positions are by token."""
    heads = keys.shape[1]
    first, second = memory.key, memory.value if memory.rope is None else memory.rope
    shape = SlotShape(
        part_shape(first, memory.row_scales), part_shape(second), table.page_tokens, table.sink_columns,
        table.ring_columns, heads, pad(heads, 1), memory.key_scales is not None,
    )  # fmt: skip
    key_scales = memory.row_scales if memory.key_scales is None else memory.key_scales
    scales = [positions if given is None else given for given in (key_scales, memory.value_scales)]
    write_slots[(len(keys),)](
        keys, values, first, second, *scales, table.addresses, table_rows, positions, table.addresses.stride(0),
        keys.stride(0), keys.stride(1), values.stride(0), values.stride(1), shape,
    )  # fmt: skip
