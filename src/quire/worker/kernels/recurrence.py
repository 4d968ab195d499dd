"""Recurrent matrices over packed tokens, read from pages and written back there. For each head,

    S ← decay · S + key ⊗ u      u = weight · (value − correction)      result = scale · Sᵀ query + skip · value

With a delta rule the correction is the value that the decayed S already has for the key; without one it is 0.

    few tokens    token by token, S in registers: a decode step reads and writes each state once
    many tokens   `solve_chunks` for all chunks at once, then `scan_chunks` chunk by chunk, on matrix units
    captures      S is stored after a token for which `captured` names a page; chunks end there

Within a chunk whose decays add up to G, u of all tokens solves (1 + N) U = weight · (V − e^G K S), where N holds the
keys' products below the diagonal; (1 + N)⁻¹ is made of the inverses of its diagonal blocks, which double in size.
"""

from __future__ import annotations

import triton
import triton.language as tl

from quire.worker.kernels.tile import INTERPRETED

EPSILON = tl.constexpr(1e-6)
"""Added to squares when vectors are normalised, as in training."""


@triton.jit
def recur_rows(
    query, key, value, decay, weight, skip, out, state, addresses, captured, rows, scale, query_token, key_token,
    value_token, address_row, shape: tl.constexpr,
):  # fmt: skip
    """Grid (block of values, head, row). The state after draft i goes to page i of the row."""
    head = tl.program_id(1)
    rows += tl.program_id(2) * 5
    place, count, known = tl.load(rows + 1).to(tl.int64), tl.load(rows + 2), tl.load(rows + 3)
    addresses += tl.load(rows) * address_row
    number = tl.arange(0, shape.padded_keys)
    column = tl.program_id(0) * shape.block_values + tl.arange(0, shape.block_values)
    inside = (number < shape.keys)[:, None] & (column < shape.values)[None, :]
    within = matrix_places(head, number, column, shape)
    query += place * query_token + head // shape.share * shape.keys + number
    key += place * key_token + head // shape.share * shape.keys + number
    value += place * value_token + head * shape.values + column
    matrix = load_matrix(state, addresses, within, inside & (count > 0), shape)
    for token in tl.range(0, count):
        line = (place + token) * shape.heads + head
        asked = vector(query + token * query_token, number < shape.keys, shape)
        named = vector(key + token * key_token, number < shape.keys, shape)
        given = tl.load(value + token * value_token, mask=column < shape.values, other=0.0).to(tl.float32)
        if shape.fades_by_key:
            faded = tl.load(decay + line * shape.keys + number, mask=number < shape.keys, other=0.0).to(tl.float32)
            matrix *= tl.exp(faded)[:, None]
        else:
            matrix *= tl.exp(tl.load(decay + line).to(tl.float32))
        new = given
        if shape.has_delta:
            new -= tl.sum(matrix * named[:, None], 0)
        matrix += named[:, None] * (new * tl.load(weight + line).to(tl.float32))[None, :]
        result = tl.sum(matrix * asked[:, None], 0) * scale
        if shape.has_skip:
            result += given * tl.load(skip + head).to(tl.float32)
        tl.store(out + line * shape.values + column, result.to(out.dtype.element_ty), mask=column < shape.values)
        if token >= known - 1:
            store_matrix(state, addresses + token - (known - 1), within, matrix, inside, shape)
        if shape.has_captures:
            capture_matrix(state, captured + place + token, within, matrix, inside, shape)


@triton.jit
def solve_chunks(
    query, key, decay, weight, mixing, solution, chunks, scale, query_token, key_token, shape: tl.constexpr
):
    """Grid (chunk, head): how results mix u of the chunk's tokens, and what makes u of values: (token, token) each."""
    head = tl.program_id(1)
    chunks += tl.program_id(0) * 4
    place, count = tl.load(chunks + 1).to(tl.int64) + tl.load(chunks + 2), tl.load(chunks + 3)
    token, number = tl.arange(0, shape.chunk), tl.arange(0, shape.padded_keys)
    there = token < count
    faded, _ = decays(decay + place * shape.heads + head, token, there, shape)
    keys = vectors(key + place * key_token + head // shape.share * shape.keys, key_token, token, number, there, shape)
    queries = vectors(
        query + place * query_token + head // shape.share * shape.keys, query_token, token, number, there, shape
    )
    row, column = token[:, None], token[None, :]
    fading = tl.exp(tl.where(row >= column, faded[:, None] - faded[None, :], float("-inf")))
    lines = (
        (tl.program_id(0) * shape.heads + head).to(tl.int64) * shape.chunk * shape.chunk + row * shape.chunk + column
    )
    mixed = product(queries, tl.trans(keys)) * fading * scale
    tl.store(mixing + lines, mixed.to(mixing.dtype.element_ty))
    if shape.has_delta:
        weights = tl.load(weight + (place + token) * shape.heads + head, mask=there, other=0.0).to(tl.float32)
        below = tl.where(row > column, product(keys, tl.trans(keys)) * fading * weights[:, None], 0.0)
        inverse = tl.where(row == column, 1.0, 0.0)
        doublings: tl.constexpr = shape.doublings
        for power in tl.static_range(doublings):
            inverse = with_pairs(inverse, below, row // (1 << power), column // (1 << power), shape)
        tl.store(solution + lines, (inverse * weights[None, :]).to(solution.dtype.element_ty))


@triton.jit
def with_pairs(inverse, below, row_block, column_block, shape: tl.constexpr):
    """Inverses of blocks twice as large, from those of diagonal blocks."""
    between = tl.where((row_block % 2 == 1) & (column_block == row_block - 1), below, 0.0)
    return inverse - exact(exact(inverse, between, shape), inverse, shape)


@triton.jit
def scan_chunks(
    query, key, value, decay, weight, skip, mixing, solution, out, state, addresses, captured, rows, first_pieces,
    piece_ends, scale, query_token, key_token, value_token, address_row, shape: tl.constexpr,
):  # fmt: skip
    """Grid (block of values, head, row). A row is one piece, or several that end at its captures."""
    head = tl.program_id(1)
    rows += tl.program_id(2) * 5
    place, count, first_chunk = tl.load(rows + 1).to(tl.int64), tl.load(rows + 2), tl.load(rows + 4)
    addresses += tl.load(rows) * address_row
    number = tl.arange(0, shape.padded_keys)
    column = tl.program_id(0) * shape.block_values + tl.arange(0, shape.block_values)
    inside = (number < shape.keys)[:, None] & (column < shape.values)[None, :]
    within = matrix_places(head, number, column, shape)
    query += place * query_token + head // shape.share * shape.keys
    key += place * key_token + head // shape.share * shape.keys
    matrix = load_matrix(state, addresses, within, inside & (count > 0), shape)
    if shape.has_captures:
        first_pieces += tl.program_id(2)
        first = 0
        for piece in tl.range(tl.load(first_pieces), tl.load(first_pieces + 1)):
            end = tl.load(piece_ends + piece)
            matrix = scan_piece(
                matrix, query, key, value, decay, weight, skip, mixing, solution, out, scale, query_token, key_token,
                value_token, place, first, end, first_chunk, shape,
            )  # fmt: skip
            capture_matrix(state, captured + place + end - 1, within, matrix, inside, shape)
            first_chunk += tl.cdiv(end - first, shape.chunk)
            first = end
    else:
        matrix = scan_piece(
            matrix, query, key, value, decay, weight, skip, mixing, solution, out, scale, query_token, key_token,
            value_token, place, 0, count, first_chunk, shape,
        )  # fmt: skip
    store_matrix(state, addresses, within, matrix, inside & (count > 0), shape)


@triton.jit
def scan_piece(
    matrix, query, key, value, decay, weight, skip, mixing, solution, out, scale, query_token, key_token, value_token,
    place, first, end, first_chunk, shape: tl.constexpr,
):  # fmt: skip
    """The matrix after tokens [first, end) of a row. Bounds of chunks are computed, not loaded: otherwise the
    compiler prefetches less for the next ones."""
    head = tl.program_id(1)
    token, number = tl.arange(0, shape.chunk), tl.arange(0, shape.padded_keys)
    column = tl.program_id(0) * shape.block_values + tl.arange(0, shape.block_values)
    for chunk in tl.range(0, tl.cdiv(end - first, shape.chunk)):
        tokens = first + chunk * shape.chunk + token
        there = tokens < end
        line = (place + tokens) * shape.heads + head
        faded, last = decays(decay + place * shape.heads + head, tokens, there, shape)
        keys = vectors(key, key_token, tokens, number, there, shape)
        queries = vectors(query, query_token, tokens, number, there, shape)
        mask = there[:, None] & (column < shape.values)[None, :]
        places = (place + tokens)[:, None] * value_token + head * shape.values + column[None, :]
        given = tl.load(value + places, mask=mask, other=0.0)
        lines = ((first_chunk + chunk) * shape.heads + head).to(tl.int64) * shape.chunk * shape.chunk
        lines += token[:, None] * shape.chunk + token[None, :]
        before = matrix.to(keys.dtype)
        if shape.has_delta:
            left = given.to(tl.float32) - tl.exp(faded)[:, None] * product(keys, before)
            new = product(tl.load(solution + lines), left.to(keys.dtype))
        else:
            new = given.to(tl.float32) * tl.load(weight + line, mask=there, other=0.0).to(tl.float32)[:, None]
        new = new.to(keys.dtype)
        result = tl.exp(faded)[:, None] * product(queries, before) * scale + product(tl.load(mixing + lines), new)
        if shape.has_skip:
            result += given.to(tl.float32) * tl.load(skip + head).to(tl.float32)
        tl.store(out + line[:, None] * shape.values + column[None, :], result.to(out.dtype.element_ty), mask=mask)
        remaining = (keys.to(tl.float32) * tl.exp(last - faded)[:, None]).to(keys.dtype)
        matrix = matrix * tl.exp(last) + product(tl.trans(remaining), new)
    return matrix


@triton.jit
def matrix_places(head, number, column, shape: tl.constexpr):
    """Offsets of a head's matrix in a page, (key, value)."""
    return head * shape.keys * shape.values + number[:, None] * shape.key_step + column[None, :] * shape.value_step


@triton.jit
def load_matrix(state, addresses, within, mask, shape: tl.constexpr):
    page = state + tl.load(addresses).to(tl.int64) * shape.granule
    return tl.load(page + within, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def store_matrix(state, addresses, within, matrix, mask, shape: tl.constexpr):
    page = state + tl.load(addresses).to(tl.int64) * shape.granule
    tl.store(page + within, matrix.to(state.dtype.element_ty), mask=mask)


@triton.jit
def capture_matrix(state, captured, within, matrix, inside, shape: tl.constexpr):
    """Stores the matrix to the page in `captured`, if there is one."""
    if tl.load(captured) >= 0:
        store_matrix(state, captured, within, matrix, inside, shape)


@triton.jit
def vector(numbers, there, shape: tl.constexpr):
    """A query or key of one token, in fp32."""
    found = tl.load(numbers, mask=there, other=0.0).to(tl.float32)
    if shape.is_normalised:
        found = found / tl.sqrt(tl.sum(found * found, 0) + EPSILON)
    return found


@triton.jit
def vectors(begin, token_step, tokens, number, there, shape: tl.constexpr):
    """Queries or keys (token, number) as the matrix units take them."""
    mask = there[:, None] & (number < shape.keys)[None, :]
    found = tl.load(begin + tokens[:, None] * token_step + number[None, :], mask=mask, other=0.0)
    if shape.is_normalised:
        wide = found.to(tl.float32)
        found = (wide / tl.sqrt(tl.sum(wide * wide, 1) + EPSILON)[:, None]).to(found.dtype)
    return found


@triton.jit
def decays(decay, tokens, there, shape: tl.constexpr):
    """Logarithms of decays, from the beginning of the chunk to each token, and over the whole chunk."""
    each = tl.load(decay + tokens * shape.heads, mask=there, other=0.0).to(tl.float32)
    return tl.cumsum(each, 0), tl.sum(each, 0)


@triton.jit
def product(a, b):
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    return tl.dot(a, b.to(a.dtype), input_precision="ieee")


@triton.jit
def exact(a, b, shape: tl.constexpr):
    """A product of fp32 matrices, as exact as their inputs."""
    return tl.dot(a, b, input_precision=shape.precision)
