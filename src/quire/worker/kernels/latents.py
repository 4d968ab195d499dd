"""Absorbed latent attention over pages: a latent is key and value of all heads at once, with a rotary key.

A wide latent is read and mixed in quarters: a thread then holds a quarter of the addresses, and no register spills.

    latent of a token   [ 0 ··· | 1 ··· | 2 ··· | 3 ··· ]   scores: sum of four products, and the rotary one
    result of a head    [ 0 ··· | 1 ··· | 2 ··· | 3 ··· ]   each mixed from the same quarter of the tokens
"""

from __future__ import annotations

import triton
import triton.language as tl

from quire.worker.kernels.tile import LOG2_E, dot, load_numbers, load_tokens, sees, token_addresses, weigh


@triton.jit
def attend_latents(
    query, latent, rope, out, partial, partial_exponent, table, items, scale,
    query_stride, out_stride, table_stride, shape: tl.constexpr, tile_tokens: tl.constexpr,
):  # fmt: skip
    """Grid (block of heads, item), as `attend_items`."""
    part_shape: tl.constexpr = shape.keys
    rope_shape: tl.constexpr = shape.ropes
    block = tl.program_id(0)
    items += tl.program_id(1) * 8
    place, position, queries = tl.load(items + 1), tl.load(items + 2), tl.load(items + 3)
    begin, end, pieces, slot = tl.load(items + 4), tl.load(items + 5), tl.load(items + 6), tl.load(items + 7)
    table += tl.load(items).to(tl.int64) * table_stride
    row = tl.arange(0, shape.rows)
    asks = row < queries * shape.group
    token, heads = (place + row // shape.group).to(tl.int64), block * shape.group + row % shape.group
    query += token * query_stride + heads * shape.query_head
    plain = load_quarters(query, asks, part_shape)
    turned = load_numbers(query + part_shape.width, asks, rope_shape)
    asked = (plain, turned, position + row // shape.group)
    peak, total, mixed = read_latents(asked, latent, rope, table, scale, begin, end, shape, tile_tokens)
    share = 1 / tl.where(total > 0, total, 1.0)
    if pieces == 1:
        store_quarters(out + token * out_stride + heads * part_shape.width, mixed, share, asks, part_shape)
    else:
        line = (slot * tl.num_programs(0) + block).to(tl.int64) * shape.rows + row
        store_quarters(partial + line * part_shape.width, mixed, share, asks, part_shape)
        tl.store(partial_exponent + line, peak + tl.log2(tl.where(total > 0, total, 1.0)), mask=asks)


@triton.jit
def read_latents(asked, latent, rope, table, scale, begin, end, shape: tl.constexpr, tile_tokens: tl.constexpr):
    """(greatest exponent, sum of weights, weighted sums by quarter). Addresses are read one tile ahead."""
    part_shape: tl.constexpr = shape.keys
    rope_shape: tl.constexpr = shape.ropes
    plain, turned, positions = asked
    nothing = tl.full([shape.rows], 0.0, tl.float32)
    quarter = tl.full([shape.rows, part_shape.padded // 4], 0.0, tl.float32)
    peak, total, mixed = nothing - float("inf"), nothing, (quarter, quarter, quarter, quarter)
    tokens = begin + tl.arange(0, tile_tokens)
    following = token_addresses(table, tokens, tokens < end, shape)
    for first in tl.range(begin, end, tile_tokens):
        tokens = first + tl.arange(0, tile_tokens)
        there = tokens < end
        addresses = following
        following = token_addresses(table, tokens + tile_tokens, tokens + tile_tokens < end, shape)
        slots = tokens % shape.page_tokens
        rows = latent + addresses.to(tl.int64) * part_shape.granule + slots * part_shape.step
        keys = cast_quarters(load_quarters(rows, there, part_shape), plain)
        ropes = load_tokens(rope, addresses, slots, there, rope_shape, False).to(turned.dtype)
        scores = multiply_quarters(plain, keys, tl.full([shape.rows, tile_tokens], 0.0, tl.float32))
        scores = dot(turned, tl.trans(ropes), scores)
        if shape.is_alike:
            scores = tl.where(there[None, :], scores, float("-inf"))
        else:
            scores = tl.where(sees(positions, tokens, shape) & there[None, :], scores, float("-inf"))
        peak, total, weights, shrink = weigh(peak, total, scores, scale * LOG2_E, not shape.is_alike)
        mixed = mix_quarters(mixed, weights, shrink, keys)
    return peak, total, mixed


@triton.jit
def load_quarters(rows, there, part_shape: tl.constexpr):
    return (
        load_quarter(rows, there, 0, part_shape),
        load_quarter(rows, there, 1, part_shape),
        load_quarter(rows, there, 2, part_shape),
        load_quarter(rows, there, 3, part_shape),
    )


@triton.jit
def cast_quarters(quarters, others):
    """In the type of the others: factors of a product must have one type."""
    return (
        quarters[0].to(others[0].dtype),
        quarters[1].to(others[1].dtype),
        quarters[2].to(others[2].dtype),
        quarters[3].to(others[3].dtype),
    )


@triton.jit
def load_quarter(rows, there, which: tl.constexpr, part_shape: tl.constexpr):
    """(row, number) from where each row begins; 0 where nothing is."""
    width: tl.constexpr = part_shape.padded // 4
    number = tl.arange(0, width)
    places = rows[:, None] + number[None, :] + which * width
    if part_shape.width < part_shape.padded:
        return tl.load(places, mask=there[:, None] & (which * width + number < part_shape.width)[None, :], other=0.0)
    return tl.load(places, mask=there[:, None], other=0.0)


@triton.jit
def multiply_quarters(queries, keys, scores):
    scores = dot(queries[0], tl.trans(keys[0]), scores)
    scores = dot(queries[1], tl.trans(keys[1]), scores)
    scores = dot(queries[2], tl.trans(keys[2]), scores)
    return dot(queries[3], tl.trans(keys[3]), scores)


@triton.jit
def mix_quarters(mixed, weights, shrink, values):
    weights, shrink = weights.to(values[0].dtype), shrink[:, None]
    return (
        dot(weights, values[0], mixed[0] * shrink),
        dot(weights, values[1], mixed[1] * shrink),
        dot(weights, values[2], mixed[2] * shrink),
        dot(weights, values[3], mixed[3] * shrink),
    )


@triton.jit
def store_quarters(rows, mixed, share, asks, part_shape: tl.constexpr):
    store_quarter(rows, mixed[0] * share[:, None], asks, 0, part_shape)
    store_quarter(rows, mixed[1] * share[:, None], asks, 1, part_shape)
    store_quarter(rows, mixed[2] * share[:, None], asks, 2, part_shape)
    store_quarter(rows, mixed[3] * share[:, None], asks, 3, part_shape)


@triton.jit
def store_quarter(rows, numbers, asks, which: tl.constexpr, part_shape: tl.constexpr):
    place = which * (part_shape.padded // 4) + tl.arange(0, part_shape.padded // 4)
    there = asks[:, None] & (place < part_shape.width)[None, :]
    tl.store(rows[:, None] + place[None, :], numbers.to(rows.dtype.element_ty), mask=there)
