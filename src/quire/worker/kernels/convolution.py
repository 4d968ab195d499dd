"""Short causal convolutions over packed tokens. Inputs before a row's first new token are in its page.

    page   channel: [ input −3 | −2 | −1 ]        one column fewer than the kernel has taps

Rows with few tokens are one program for each block of channels, which reads the page and writes it back. Rows with many
tokens are cut into chunks, which do not read the page; after them such a program computes the first tokens, which do,
and writes the page. Captures are written before that, while the page still holds the inputs before the first new token.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def convolve_rows(
    inputs, weight, bias, out, pages, addresses, offsets, rows, channels, input_token, input_channel, out_token,
    address_row, granule, taps: tl.constexpr, padded_taps: tl.constexpr, block: tl.constexpr, has_bias: tl.constexpr,
    has_silu: tl.constexpr, is_long: tl.constexpr,
):  # fmt: skip
    """Grid (row, block of channels). Columns after draft i go to page i of the row; draft 0 is its known tokens."""
    rows += tl.program_id(0) * 5
    place, count, known = tl.load(rows + 1).to(tl.int64), tl.load(rows + 2), tl.load(rows + 3)
    addresses += tl.load(rows) * address_row
    channel = (tl.program_id(1) * block + tl.arange(0, block))[:, None]
    tap = tl.arange(0, padded_taps)[None, :]
    there = channel < channels
    column = pages + tl.load(offsets + channel, mask=there, other=0)
    before = column + tl.load(addresses, mask=count > 0, other=0).to(tl.int64) * granule
    inputs += place * input_token + channel * input_channel
    factor = tl.load(weight + channel * taps + tap, mask=there & (tap < taps), other=0.0).to(tl.float32)
    asks = count
    if is_long:
        asks = taps - 1
    for token in tl.range(0, asks):
        index = token - (taps - 1) + tap
        seen = load_inputs(inputs, input_token, before, index, there & (tap < taps), taps)
        result = tl.sum(seen.to(tl.float32) * factor, 1)[:, None]
        result = finish(result, bias + channel, there, has_bias, has_silu)
        tl.store(out + (place + token) * out_token + channel, result.to(out.dtype.element_ty), mask=there)
    for earlier in tl.range(0, count - known + (count > 0)):
        page = count - known - earlier
        index = known + page - (taps - 1) + tap
        kept = load_inputs(inputs, input_token, before, index, there & (tap < taps - 1), taps)
        tl.debug_barrier()  # other threads may still read what the row's own page held
        target = column + tl.load(addresses + page).to(tl.int64) * granule
        tl.store(target + tap, kept.to(pages.dtype.element_ty), mask=there & (tap < taps - 1))


@triton.jit
def convolve_chunks(
    inputs, weight, bias, out, chunks, channels, input_token, input_channel, out_token, taps: tl.constexpr,
    tokens: tl.constexpr, block: tl.constexpr, has_bias: tl.constexpr, has_silu: tl.constexpr,
):  # fmt: skip
    """Grid (chunk, block of channels), without the inputs before the row's new tokens. `weight` is (tap, channel)."""
    chunks += tl.program_id(0) * 4
    place, first, count = tl.load(chunks + 1).to(tl.int64), tl.load(chunks + 2), tl.load(chunks + 3)
    channel = (tl.program_id(1) * block + tl.arange(0, block))[None, :]
    there = channel < channels
    inputs += place * input_token + channel * input_channel
    for begin in tl.range(first, first + count, tokens):
        token = begin + tl.arange(0, tokens)[:, None]
        mask = (token < first + count) & there
        result = tl.full([tokens, block], 0.0, tl.float32)
        for tap in tl.static_range(taps):
            index = token - (taps - 1) + tap
            seen = tl.load(inputs + index * input_token, mask=mask & (index >= 0), other=0.0).to(tl.float32)
            result += seen * tl.load(weight + tap * channels + channel, mask=there, other=0.0).to(tl.float32)
        result = finish(result, bias + channel, there, has_bias, has_silu)
        tl.store(out + (place + token) * out_token + channel, result.to(out.dtype.element_ty), mask=mask)


@triton.jit
def capture_columns(
    inputs, pages, addresses, offsets, captures, targets, channels, input_token, input_channel, address_row, granule,
    taps: tl.constexpr, padded_taps: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Grid (capture, block of channels): the columns after the first tokens of a row go to a page of their own."""
    captures += tl.program_id(0) * 3
    place, count = tl.load(captures + 1).to(tl.int64), tl.load(captures + 2)
    addresses += tl.load(captures) * address_row
    channel = (tl.program_id(1) * block + tl.arange(0, block))[:, None]
    tap = tl.arange(0, padded_taps)[None, :]
    mask = (channel < channels) & (tap < taps - 1)
    column = pages + tl.load(offsets + channel, mask=channel < channels, other=0)
    before = column + tl.load(addresses).to(tl.int64) * granule
    inputs += place * input_token + channel * input_channel
    kept = load_inputs(inputs, input_token, before, count - (taps - 1) + tap, mask, taps)
    target = column + tl.load(targets + tl.program_id(0)).to(tl.int64) * granule
    tl.store(target + tap, kept.to(pages.dtype.element_ty), mask=mask)


@triton.jit
def load_inputs(inputs, input_token, before, index, mask, taps: tl.constexpr):
    """By index among a row's new tokens; those before the first are columns of its page."""
    new = tl.load(inputs + index * input_token, mask=mask & (index >= 0), other=0.0)
    old = tl.load(before + index + (taps - 1), mask=mask & (index < 0), other=0.0)
    return tl.where(index < 0, old.to(new.dtype), new)


@triton.jit
def finish(result, bias, there, has_bias: tl.constexpr, has_silu: tl.constexpr):
    if has_bias:
        result += tl.load(bias, mask=there, other=0.0).to(tl.float32)
    if has_silu:
        result = result / (1 + tl.exp(-result))
    return result
