"""Experts: each token's tokens by the experts that it chose, in two launches.

    tokens ──by pair──▶ gate, up ─▶ activation ──by slot──▶ down × share ──▶ (token, chosen, out)

Slots are pairs of token and expert, sorted by expert in whole tiles (`routing.py`). What lies in slots without a pair
is never read into another row. With few tokens a tile is as wide as few of them, and every expert's weight is read
once; then it is the weight's rows that fill the matrix units, and tokens are their columns (`swaps`).
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from quire.worker.kernels.few import late_of
from quire.worker.kernels.octets import (
    AT_END,
    EACH_STEP,
    as_bits,
    read_packed,
    read_quickly,
    reads_quickly,
    scale_of,
)
from quire.worker.kernels.routing import Slots, sorted_slots
from quire.worker.kernels.tile import dot

COPIES_SINCE = 9
"""Compute capability."""
DENSE = tl.constexpr(-1)
NO_GATE, HALVES, INTERLEAVED, STACKED = (tl.constexpr(number) for number in range(4))
"""Rows of gate and up: one half after the other, or in turns. Stacked: a tile holds halves one after the other too."""
SILU, CLAMPED, GELU = (tl.constexpr(number) for number in range(3))


class Tile(NamedTuple):
    """How a product is cut."""

    rows: int
    columns: int
    depth: int
    warps: int = 4
    stages: int = 3
    swaps: bool = False
    group: int = 1
    """Tiles of tokens that neighbouring programs share a weight for."""
    copies: bool = False
    """The hardware copies whole tiles of the weight."""


class Gate(NamedTuple):
    """What joins gate and up."""

    sort: int = 0
    activation: int = 0
    slope: float = 1.0
    limit: float = 0.0


class Form(NamedTuple):
    """What a kernel is compiled for."""

    rows: int
    columns: int
    depth: int
    group: int
    swaps: bool
    copies: bool
    is_first: bool
    is_one: bool
    has_bias: bool
    is_even: bool
    gate: int
    activation: int
    slope: float
    limit: float
    kind: int = -1
    scale: int = 0
    block_rows: int = 1
    block_inputs: int = 0
    has_minimums: bool = False
    has_factors: bool = False
    inputs: int = 0
    late: int = 0
    is_quick: bool = False


@triton.jit
def _sigmoid(x):
    return 1 / (1 + tl.exp(tl.minimum(-x, 80.0)))


@triton.jit
def activate(gates, ups, form: tl.constexpr):
    if form.activation == CLAMPED:
        gates = tl.minimum(gates, form.limit)
        ups = tl.minimum(tl.maximum(ups, -form.limit), form.limit) + 1
        return gates * _sigmoid(gates * form.slope) * ups
    if form.activation == GELU:
        inner = 0.7978845608028654 * (gates + 0.044715 * gates * gates * gates)
        return gates * _sigmoid(2 * inner) * ups
    return gates * _sigmoid(gates) * ups


@triton.jit
def _lines(begin, outputs, form: tl.constexpr, wide: tl.constexpr):
    """The weight's row for each line of a tile; beyond the last output, the last output's."""
    line = tl.arange(0, wide)
    if form.gate == NO_GATE:
        return tl.minimum(begin + line, outputs - 1)
    if form.gate == STACKED:
        return tl.minimum(begin + line % form.columns, outputs - 1) + line // form.columns * outputs
    output = tl.minimum(begin + line // 2, outputs - 1)
    if form.gate == HALVES:
        return output + line % 2 * outputs
    return 2 * output + line % 2


@triton.jit
def _copied(weight, begins, first, form: tl.constexpr, wide: tl.constexpr):
    expert, begin = begins
    if form.gate == STACKED:
        found = weight.load([expert * 2, begin, first])
    elif form.gate == INTERLEAVED:
        found = weight.load([expert, begin * 2, first])
    else:
        found = weight.load([expert, begin, first])
    return tl.reshape(found, [wide, form.depth])


@triton.jit
def _loaded(weight, lines, place, inputs, form: tl.constexpr):
    if form.is_even:
        found = tl.load(weight + lines[:, None] + place[None, :])
    else:
        found = tl.load(weight + lines[:, None] + place[None, :], mask=(place < inputs)[None, :], other=0.0)
    return found


@triton.jit
def _read(weights, places, first, form: tl.constexpr, wide: tl.constexpr):
    """(line, input) of a tile."""
    weight = weights[0]
    expert, begin, lines, number, by_input, rows, inputs = places
    if form.copies:
        found = _copied(weight, (expert, begin), first, form, wide)
    elif form.is_quick:
        found = read_quickly(weights, (lines, rows, inputs), first, form, wide)
    elif form.kind != DENSE:
        found = read_packed(weights, (lines, rows, inputs), first, form, wide)
    else:
        found = _loaded(weight + first * by_input, lines, number * by_input, (inputs - first) * by_input, form)
    return found


@triton.jit
def multiply_experts(given, weight, sides, sizes, form: tl.constexpr):
    """Grid (tiles × blocks of outputs,). `given`: tokens, results, bias, shares, order and experts of slots; `sides`:
    scales, minimums and factors, and how many scales there are along outputs and inputs. First product: results lie by
    slot; second: by pair, multiplied by its share."""
    tokens, out, bias, shares, order, experts = given
    count, outputs, inputs, each, tiles, by_expert, by_output, by_input = sizes
    wide: tl.constexpr = form.columns if form.gate == NO_GATE else 2 * form.columns
    tile, block = _place(outputs, tiles, form)
    if form.is_one:
        expert = tl.where(tile * form.rows < count, 0, -1).to(tl.int64)
    else:
        expert = tl.load(experts + tile).to(tl.int64)
    if expert >= 0:
        slot = tile * form.rows + tl.arange(0, form.rows)
        pair = slot if form.is_one else tl.load(order + slot)
        is_row, number, begin = pair < count, tl.arange(0, form.depth), block * form.columns
        source = tl.where(is_row, pair // each, 0) if form.is_first else tl.where(is_row, slot, tile * form.rows)
        left = tokens + source[:, None].to(tl.int64) * inputs + number[None, :]
        lines = _lines(begin, outputs, form, wide)
        height = outputs if form.gate == NO_GATE else 2 * outputs
        own = lines + expert * height
        rows = own
        if form.kind != DENSE:
            rows = (expert * sides[3] + lines // form.block_rows) * sides[4]
        where = own if form.kind != DENSE else expert * by_expert + lines.to(tl.int64) * by_output
        there = expert.to(tl.int32), begin, where, number, by_input, rows, inputs
        total = tl.full([wide, form.rows] if form.swaps else [form.rows, wide], 0.0, tl.float32)
        for first in tl.range(0, inputs, form.depth):
            if form.is_even:
                read = tl.load(left + first)
            else:
                read = tl.load(left + first, mask=(first + number < inputs)[None, :], other=0.0)
            part = _read((weight, sides), there, first, form, wide).to(read.dtype)
            total = _added(total, (read, part), (sides[0], rows, first), form, wide)
        found = tl.trans(total) if form.swaps else total
        found = _scaled(found, sides, rows, own, form)
        if form.has_bias:
            found += tl.load(bias + expert * height + lines).to(tl.float32)[None, :]
        if form.gate != NO_GATE:
            found = _join(found, form)
        column = begin + tl.arange(0, form.columns)
        target = slot if form.is_first and form.gate != NO_GATE else pair
        if not form.is_first:
            found *= tl.load(shares + pair, mask=is_row, other=0.0).to(tl.float32)[:, None]
        places = out + target[:, None].to(tl.int64) * outputs + column[None, :]
        tl.store(places, found.to(out.dtype.element_ty), mask=is_row[:, None] & (column < outputs)[None, :])


@triton.jit
def _added(total, both, scales, form: tl.constexpr, wide: tl.constexpr):
    """Adds a tile's products. `scales`: and where each line's one lies, and the first input."""
    read, part = both
    if form.late == EACH_STEP:
        scale = scale_of(scales[0], scales[1], scales[2], form.scale, form.block_inputs)
        none = tl.full([wide, form.rows] if form.swaps else [form.rows, wide], 0.0, tl.float32)
        if form.swaps:
            total += dot(part, tl.trans(read), none) * scale[:, None]
        else:
            total += dot(read, tl.trans(part), none) * scale[None, :]
    elif form.swaps:
        total = dot(part, tl.trans(read), total)
    else:
        total = dot(read, tl.trans(part), total)
    return total


@triton.jit
def _scaled(found, sides, rows, lines, form: tl.constexpr):
    if form.late == AT_END:
        found *= scale_of(sides[0], rows, 0, form.scale, form.block_inputs)[None, :]
    if form.has_factors:
        found *= tl.load(sides[2] + lines)[None, :]
    return found


@triton.jit
def _place(outputs, tiles, form: tl.constexpr):
    """Programs of a group of tiles go through the blocks of outputs together."""
    blocks, program = tl.cdiv(outputs, form.columns), tl.program_id(0)
    around = form.group * blocks
    first = program // around * form.group
    size = tl.minimum(tiles - first, form.group)
    within = program % around
    return first + within % size, within // size


@triton.jit
def _join(found, form: tl.constexpr):
    if form.gate == STACKED:
        cut = tl.permute(tl.reshape(found, [form.rows, 2, form.columns]), [0, 2, 1])
    else:
        cut = tl.reshape(found, [form.rows, form.columns, 2])
    gates, ups = tl.split(cut)
    return activate(gates, ups, form)


class Product(NamedTuple):
    """One of the two products of experts: (expert, out, in), with or without packed codes."""

    weight: torch.Tensor
    is_transposed: bool = False
    """It lies as (expert, in, out)."""
    bias: torch.Tensor | None = None
    sides: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
    facts: tuple[int, ...] = ()
    """Of packed codes: kind, kind of scales, outputs and inputs of a scale, whether there are minimums and factors, and
    inputs."""

    @property
    def sizes(self) -> tuple[int, int]:
        """(out, in)"""
        _, outputs, inputs = self.weight.shape
        if self.is_transposed:
            return inputs, outputs
        return outputs, self.facts[-1] if self.facts else inputs


def multiply(
    tokens: torch.Tensor,
    shares: torch.Tensor | None,
    product: Product,
    slots: Slots | None,
    cut: tuple[Tile, Gate, int, int],
) -> torch.Tensor:
    """The first product has no `shares`; `cut`: tile, gate, pairs, and pairs of a token. Without `slots` there is one
    expert."""
    tile, gate, count, each = cut
    lines, inputs = product.sizes
    outputs = lines if gate.sort == 0 else lines // 2
    tiles, used = (len(slots.experts),) * 2 if slots else _tiles_of_one(count, tile)
    is_first, by_slot = shares is None, shares is None and gate.sort != NO_GATE.value
    out = tokens.new_empty(len(slots.order) if slots and by_slot else count, outputs)
    copies = tile.copies and can_copy(product, tile)
    is_quick = bool(product.facts) and reads_quickly(product.facts, tile.depth, tokens.dtype)
    form = form_of(product, tile, gate, (is_first, slots is None, inputs, copies, is_quick))
    weight: Any = _descriptor(product, tile, gate) if copies else as_bits(product.weight)
    by_expert, *strides = product.weight.stride()
    by_output, by_input = reversed(strides) if product.is_transposed else strides
    bias = tokens if product.bias is None else product.bias
    scales = [as_bits(side) for side in product.sides] if product.sides else [tokens, tokens, tokens]
    along = (scales[0].shape[-2], scales[0].shape[-1]) if product.sides else (1, 1)
    order, experts = (slots.order, slots.experts) if slots else (tokens, tokens)
    given = (tokens, out, bias, tokens if is_first else shares, order, experts)
    sizes = (count, outputs, inputs, each, tiles, by_expert, by_output, by_input)
    multiply_experts[(used * triton.cdiv(outputs, tile.columns),)](
        given, weight, (*scales, *along), sizes, form, num_warps=tile.warps, num_stages=tile.stages
    )
    return out


def _tiles_of_one(count: int, tile: Tile) -> tuple[int, int]:
    """As many as the kernel is told, in sixteens as in `most_tiles`, and as many as are launched: whole groups."""
    tiles = triton.cdiv(count, tile.rows)
    return triton.cdiv(tiles, 16) * 16, triton.cdiv(tiles, tile.group) * tile.group


def form_of(product: Product, tile: Tile, gate: Gate, facts: tuple[bool, bool, int, bool, bool]) -> Form:
    is_first, is_one, inputs, copies, is_quick = facts
    sort = STACKED.value if copies and gate.sort == HALVES.value else gate.sort
    late = (0 if is_quick else late_of(product.facts, tile.depth), is_quick) if product.facts else ()
    return Form(
        tile.rows, tile.columns, tile.depth, tile.group, tile.swaps, copies, is_first, is_one,
        product.bias is not None, inputs % tile.depth == 0, sort, gate.activation, gate.slope, gate.limit,
        *product.facts, *late,  # type: ignore[arg-type]
    )  # fmt: skip


def can_copy(product: Product, tile: Tile) -> bool:
    """Whether the hardware can copy tiles: rows begin at multiples of 16 bytes."""
    weight = product.weight
    if product.facts or product.is_transposed or not weight.is_contiguous() or not _copies(weight.device):
        return False
    is_even = weight.data_ptr() % 16 == 0 and weight.shape[-1] * weight.element_size() % 16 == 0
    return is_even and tile.depth * weight.element_size() <= 256


@cache
def _copies(device: torch.device) -> bool:
    """Since Hopper; the interpreter does too."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device)[0] >= COPIES_SINCE


def _descriptor(product: Product, tile: Tile, gate: Gate) -> TensorDescriptor:
    count, outputs, inputs = product.weight.shape
    if gate.sort == HALVES.value:
        halves = product.weight.view(2 * count, outputs // 2, inputs)
        return TensorDescriptor.from_tensor(halves, [2, tile.columns, tile.depth])
    columns = tile.columns * (1 if gate.sort == NO_GATE.value else 2)
    return TensorDescriptor.from_tensor(product.weight, [1, columns, tile.depth])


def by_experts(
    tokens: torch.Tensor,
    choice: tuple[torch.Tensor, torch.Tensor],
    products: tuple[Product, Product],
    gate: Gate,
    tiles: tuple[Tile, Tile],
) -> torch.Tensor:
    """(token, in) into (token, chosen, out), multiplied by shares. `choice`: (token, chosen) experts and shares."""
    chosen, shares = choice
    (count, each), number = chosen.shape, len(products[0].weight)
    slots = sorted_slots(chosen, number, tiles[0].rows)
    found = multiply(tokens, None, products[0], slots, (tiles[0], gate, count * each, each))
    none = Gate(NO_GATE.value)
    return multiply(found, shares, products[1], slots, (tiles[1], none, count * each, each)).view(count, each, -1)
