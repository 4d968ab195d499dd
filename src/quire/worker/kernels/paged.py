"""Attention of packed queries over pages: prefill and decode, in pieces that are joined afterwards.

One program takes one item of `work`: a block of queries of one row, all heads that share one key head, over one piece
of the row's tokens. Only tokens [begin, end) of the row are ever loaded.
"""

from __future__ import annotations

import triton
import triton.language as tl

from quire.worker.kernels.tile import (
    LOG2_E,
    add_sink,
    dot,
    for_eight,
    load_numbers,
    load_tokens,
    mix_tile,
    rescale,
    sees,
    slope_by_distance,
    soften,
    store_rows,
    to_eight,
    token_addresses,
)


@triton.jit
def attend_items(
    query, key, value, rope, out, partial, partial_exponent, table, items, by_head, key_scales, value_scales,
    new_key, new_value, scale, softcap, query_stride, out_stride, table_stride, key_token, key_head, value_token,
    value_head, shape: tl.constexpr, tile_tokens: tl.constexpr, is_peeled: tl.constexpr,
):  # fmt: skip
    """Grid (key head, item). *_token and *_head are strides of what is new. `by_head`: sink logits, then slopes."""
    key_shape: tl.constexpr = shape.keys
    value_shape: tl.constexpr = shape.values
    head = tl.program_id(0)
    items += tl.program_id(1) * 8
    place, position, queries = tl.load(items + 1), tl.load(items + 2), tl.load(items + 3)
    begin, end, pieces, slot = tl.load(items + 4), tl.load(items + 5), tl.load(items + 6), tl.load(items + 7)
    table += tl.load(items).to(tl.int64) * table_stride
    row = tl.arange(0, shape.rows)
    asks = row < queries * shape.group
    token, heads = (place + row // shape.group).to(tl.int64), head * shape.group + row % shape.group
    asks_at = query + token * query_stride + heads * shape.query_head
    asked = load_queries(asks_at, by_head, position, (row, asks, heads), shape)
    if shape.has_scales:
        scale *= tl.load(key_scales + head)
    layer = (key + head * shape.keys.head, value + head * shape.values.head, rope, key_scales, table, scale, softcap)
    since = begin
    if shape.is_invariant:
        begin = begin // tile_tokens * tile_tokens

    if shape.writes:
        new = place.to(tl.int64)
        is_newest = end > position
        key_row = write_token(new_key + new * key_token + head * key_head, key + head * key_shape.head,
                              key_scales + head, table, position, is_newest, shape, key_shape)  # fmt: skip
        value_row = write_token(new_value + new * value_token + head * value_head, value + head * value_shape.head,
                                value_scales + head, table, position, is_newest, shape, value_shape)  # fmt: skip
        state = start_with(asked, key_row, value_row, scale, softcap, is_newest, shape)
        end = tl.minimum(end, position)
    else:
        nothing = tl.full([shape.rows], 0.0, tl.float32)
        state = (nothing - float("inf"), nothing, tl.full([shape.rows, value_shape.padded], 0.0, tl.float32))
    if shape.is_alike:
        state = read_tiles(state, asked, layer, begin, end, since, end, shape, tile_tokens, False, False)
    elif is_peeled:
        clear_begin, clear_end = clear_tiles(begin, end, position, queries, shape, tile_tokens)
        if shape.window > 0 or shape.chunk > 0:
            state = read_tiles(state, asked, layer, begin, clear_begin, since, end, shape, tile_tokens, True, False)
        state = read_tiles(state, asked, layer, clear_begin, clear_end, since, end, shape, tile_tokens, False, True)
        state = read_tiles(state, asked, layer, clear_end, end, since, end, shape, tile_tokens, True, False)
    else:
        state = read_tiles(state, asked, layer, begin, end, since, end, shape, tile_tokens, True, False)

    if shape.has_scales:
        peak, total, mixed = state
        state = (peak, total, mixed * tl.load(value_scales + head))
    if pieces == 1:
        if shape.has_sink_logits:
            state = add_sink(state, tl.load(by_head + heads, mask=asks, other=0.0))
        store_rows(out, state, token * out_stride + heads * value_shape.width, asks, value_shape)
    else:
        line = (slot * tl.num_programs(0) + head).to(tl.int64) * shape.rows + row
        store_rows(partial, state, line * value_shape.width, asks, value_shape)
        peak, total, _ = state
        tl.store(partial_exponent + line, peak + tl.log2(tl.where(total > 0, total, 1.0)), mask=asks)


@triton.jit
def write_token(new, part, scale, table, position, is_there, shape: tl.constexpr, part_shape: tl.constexpr):
    """Writes one head of a new token to its slot; returns the numbers as stored. No other program reads them here."""
    number = tl.arange(0, part_shape.padded)
    there = (number < part_shape.width) & is_there
    numbers = tl.load(new + number, mask=there, other=0.0)
    if shape.has_scales:
        numbers = to_eight(numbers.to(tl.float32) / tl.load(scale))
    address = token_addresses(table, position, is_there, shape)
    target = part + address.to(tl.int64) * part_shape.granule + position % shape.page_tokens * part_shape.step
    numbers = numbers.to(part.dtype.element_ty)
    tl.store(target + number, numbers, mask=there)
    return numbers.to(tl.float32)


@triton.jit
def start_with(asked, key_row, value_row, scale, softcap, is_there, shape: tl.constexpr):
    """The state after reading only a row's newest token, from registers; or the empty state."""
    plain = asked[0]
    scores = soften(tl.sum(plain.to(tl.float32) * key_row[None, :], 1), scale, softcap, shape)
    factor = LOG2_E if shape.has_softcap else scale * LOG2_E
    peak = tl.where(is_there, scores * factor, float("-inf"))
    total = tl.where(is_there, tl.full([shape.rows], 1.0, tl.float32), 0.0)
    return peak, total, total[:, None] * value_row[None, :]


@triton.jit
def load_queries(query, by_head, position, rows, shape: tl.constexpr):
    """(for keys, for rotary keys of latents, positions, slopes) of a block; the rotary part follows the other."""
    row, asks, heads = rows
    key_shape: tl.constexpr = shape.keys
    plain = load_numbers(query, asks, key_shape)
    if shape.has_scales:
        plain = for_eight(plain)
    turned = plain
    if shape.is_latent:
        rope_shape: tl.constexpr = shape.ropes
        turned = load_numbers(query + key_shape.width, asks, rope_shape)
    slope = tl.full([shape.rows], 0.0, tl.float32)
    if shape.has_slopes:
        first = tl.num_programs(0) * shape.group if shape.has_sink_logits else 0
        slope = tl.load(by_head + first + heads, mask=asks, other=0.0).to(tl.float32)
    return plain, turned, position + row // shape.group, slope


@triton.jit
def read_tiles(
    state, asked, layer, begin, end, since, last, shape: tl.constexpr, tile_tokens: tl.constexpr,
    is_masked: tl.constexpr, all_there: tl.constexpr,
):  # fmt: skip
    """Tiles from `begin` until `end`; tokens [since, last) are there. Addresses are read one tile ahead."""
    key_shape: tl.constexpr = shape.keys
    value_shape: tl.constexpr = shape.values
    rope_shape: tl.constexpr = shape.ropes
    plain, turned, positions, slope = asked
    key, value, rope, key_scales, table, scale, softcap = layer
    factor = scale * LOG2_E
    if shape.has_softcap:
        factor = LOG2_E
    tokens = begin + tl.arange(0, tile_tokens)
    following = token_addresses(table, tokens, tokens < last, shape)
    for first in tl.range(begin, end, tile_tokens):
        tokens = first + tl.arange(0, tile_tokens)
        there = tokens < last
        if shape.is_invariant:
            there = there & (tokens >= since)
        addresses = following
        following = token_addresses(table, tokens + tile_tokens, tokens + tile_tokens < last, shape)
        slots = tokens % shape.page_tokens
        keys = load_tokens(key, addresses, slots, there, key_shape, all_there)
        if key_shape.is_quantised:
            keys = rescale(keys, key_scales, addresses, slots, there, key_shape, tile_tokens)
        keys = keys.to(plain.dtype)
        scores = dot(plain, tl.trans(keys), tl.full([shape.rows, tile_tokens], 0.0, tl.float32))
        if shape.is_latent:
            ropes = load_tokens(rope, addresses, slots, there, rope_shape, all_there).to(plain.dtype)
            scores = dot(turned, tl.trans(ropes), scores)
            values = keys
        else:
            values = load_tokens(value, addresses, slots, there, value_shape, all_there).to(plain.dtype)
        scores = soften(scores, scale, softcap, shape)
        if shape.has_slopes:
            scores += slope_by_distance(slope, positions, tokens, factor)
        if is_masked:
            scores = tl.where(sees(positions, tokens, shape) & there[None, :], scores, float("-inf"))
        elif not all_there:
            scores = tl.where(there[None, :], scores, float("-inf"))
        state = mix_tile(state, scores, factor, values, is_masked)
    return state


@triton.jit
def clear_tiles(begin, end, position, queries, shape: tl.constexpr, tile_tokens: tl.constexpr):
    """The range of whole tiles of [begin, end) that all queries of a block see entirely."""
    first = begin
    if shape.chunk > 0:
        first = (position + queries - 1) // shape.chunk * shape.chunk
    elif shape.window > 0:
        first = position + queries - shape.window
    skipped = tl.minimum(tl.cdiv(tl.maximum(first - begin, 0), tile_tokens), tl.cdiv(end - begin, tile_tokens))
    clear_begin = begin + skipped * tile_tokens
    seen_by_all = tl.minimum(end, position + 1)
    return clear_begin, clear_begin + tl.maximum(seen_by_all - clear_begin, 0) // tile_tokens * tile_tokens


@triton.jit
def join_pieces(
    partial, partial_exponent, joins, out, sink_logits, out_stride, shape: tl.constexpr, pieces_at_once: tl.constexpr
):
    """Grid (row of a block, key head, block): the pieces' results, weighed by their sums."""
    value_shape: tl.constexpr = shape.values
    row, head = tl.program_id(0), tl.program_id(1)
    joins += tl.program_id(2) * 4
    place, queries, slot, pieces = tl.load(joins), tl.load(joins + 1), tl.load(joins + 2), tl.load(joins + 3)
    if row < queries * shape.group:
        number = tl.arange(0, value_shape.padded)
        one = tl.full([1], 0, tl.int32)
        peak, total = one - float("inf"), one + 0.0
        mixed = tl.full([1, value_shape.padded], 0.0, tl.float32)
        for first in tl.range(0, pieces, pieces_at_once):
            piece = first + tl.arange(0, pieces_at_once)
            line = ((slot + piece) * tl.num_programs(1) + head).to(tl.int64) * shape.rows + row
            exponent = tl.load(partial_exponent + line, mask=piece < pieces, other=float("-inf"))
            there = (piece < pieces)[:, None] & (number < value_shape.width)[None, :]
            found = tl.load(partial + line[:, None] * value_shape.width + number[None, :], mask=there, other=0.0)
            new_peak = tl.maximum(peak, tl.max(exponent, 0))
            base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
            weight, shrink = tl.exp2(exponent - base), tl.exp2(peak - base)
            total = total * shrink + tl.sum(weight, 0)
            mixed = mixed * shrink[:, None] + tl.sum(weight[:, None] * found, 0)[None, :]
            peak = new_peak
        state = (peak, total, mixed)
        heads = head * shape.group + row % shape.group + one
        if shape.has_sink_logits:
            state = add_sink(state, tl.load(sink_logits + heads))
        token = (place + row // shape.group).to(tl.int64)
        store_rows(out, state, token * out_stride + heads * value_shape.width, one == 0, value_shape)
