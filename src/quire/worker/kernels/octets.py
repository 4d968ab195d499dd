"""Tiles of packed weights (`weights/packed.py`) as numbers, for kernels that multiply them.

Half bytes become bf16 by moving their bits, four octets at a time: e2m1 into the exponent's lowest bits, whole numbers
into the mantissa of 128. Scales of at least a tile's inputs are left to the product: a sum of products is scaled once
where each number would be (`late`). Under the interpreter everything is arithmetic in fp32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from quire.worker.kernels.tile import INTERPRETED

INT8, INT4, SINT4, FP8, FP4 = (tl.constexpr(number) for number in range(5))
KINDS = ("int8", "int4", "sint4", "fp8", "fp4")
"""By number, as kernels know them."""
NIBBLES = (1, 2, 4)
"""Kinds with two numbers in an octet."""
PLAIN, E4M3, E8M0 = (tl.constexpr(number) for number in range(3))
SCALES = {torch.float8_e4m3fn: 1, torch.float8_e8m0fnu: 2}
EACH_STEP, AT_END = tl.constexpr(1), tl.constexpr(2)
_SPREAD = """
    .reg .b32 low, high, shifted;
    prmt.b32 low, $4, 0, 0x1404;
    prmt.b32 high, $4, 0, 0x3424;
"""
_FLOATS = tl.constexpr(
    "{"
    + _SPREAD
    + """
    shr.b32 shifted, low, 6;
    and.b32 shifted, shifted, 0x01C001C0;
    lop3.b32 $2, low, 0x80008000, shifted, 0xEA;
    shr.b32 shifted, high, 6;
    and.b32 shifted, shifted, 0x01C001C0;
    lop3.b32 $3, high, 0x80008000, shifted, 0xEA;
    shl.b32 low, low, 4;
    shl.b32 high, high, 4;
    shr.b32 shifted, low, 6;
    and.b32 shifted, shifted, 0x01C001C0;
    lop3.b32 $0, low, 0x80008000, shifted, 0xEA;
    shr.b32 shifted, high, 6;
    and.b32 shifted, shifted, 0x01C001C0;
    lop3.b32 $1, high, 0x80008000, shifted, 0xEA;
    mov.b32 shifted, 0x7E807E80;
    mul.rn.bf16x2 $0, $0, shifted;
    mul.rn.bf16x2 $1, $1, shifted;
    mul.rn.bf16x2 $2, $2, shifted;
    mul.rn.bf16x2 $3, $3, shifted;
    }"""
)
"""e2m1 below bf16's least normal number, times 2 to the power of 126."""
_WHOLE = """
    shr.b32 shifted, low, 12;
    lop3.b32 $2, shifted, 0x000F000F, 0x43004300, 0xEA;
    shr.b32 shifted, high, 12;
    lop3.b32 $3, shifted, 0x000F000F, 0x43004300, 0xEA;
    shr.b32 shifted, low, 8;
    lop3.b32 $0, shifted, 0x000F000F, 0x43004300, 0xEA;
    shr.b32 shifted, high, 8;
    lop3.b32 $1, shifted, 0x000F000F, 0x43004300, 0xEA;
    mov.b32 shifted, %s;
    sub.rn.bf16x2 $0, $0, shifted;
    sub.rn.bf16x2 $1, $1, shifted;
    sub.rn.bf16x2 $2, $2, shifted;
    sub.rn.bf16x2 $3, $3, shifted;
    }"""
"""128 and a number up to 15, less 128 or 136."""
_UNSIGNED, _SIGNED = (tl.constexpr("{" + _SPREAD + _WHOLE % less) for less in ("0x43004300", "0x43084308"))
_BIASED = tl.constexpr("{" + _SPREAD + _WHOLE.partition("    mov.b32")[0] + "}")
"""128 and a number up to 15."""
_ADD = tl.constexpr("fma.rn.bf16x2 $0, $1, $2, $3;")
_THREE = tl.constexpr("=r,r,r,r")
_EIGHT = tl.constexpr(
    "{"
    """
    .reg .b32 low, high, shifted;
    prmt.b32 low, $2, 0, 0x1404;
    prmt.b32 high, $2, 0, 0x3424;
    shr.b32 shifted, low, 4;
    and.b32 shifted, shifted, 0x07F007F0;
    lop3.b32 $0, low, 0x80008000, shifted, 0xEA;
    shr.b32 shifted, high, 4;
    and.b32 shifted, shifted, 0x07F007F0;
    lop3.b32 $1, high, 0x80008000, shifted, 0xEA;
    mov.b32 shifted, 0x7B807B80;
    mul.rn.bf16x2 $0, $0, shifted;
    mul.rn.bf16x2 $1, $1, shifted;
    }"""
)
"""e4m3 below bf16's least normal number, times 2 to the power of 120; NaN becomes 480."""
_TWO = tl.constexpr("=r,=r,r")
_FOUR = tl.constexpr("=r,=r,=r,=r,r")


def as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """As kernels read it: 8-bit floats as octets."""
    return tensor.view(torch.uint8) if tensor.dtype in SCALES else tensor


@triton.jit
def _e4m3(bits):
    """8 bits as fp32, also numbers below the least normal one."""
    wide = bits.to(tl.int32)
    exponent, mantissa = (wide >> 3) & 15, wide & 7
    normal = (((exponent + 120) << 23) | (mantissa << 20)).to(tl.float32, bitcast=True)
    size = tl.where(exponent == 0, mantissa.to(tl.float32) * 0.001953125, normal)
    return tl.where(wide < 128, size, -size)


@triton.jit
def _e2m1(nibble):
    size = nibble & 7
    doubled = tl.where(size < 4, size, (2 + (size & 1)) << tl.maximum((size >> 1) - 1, 0))
    half = doubled.to(tl.float32) * 0.5
    return tl.where(nibble < 8, half, -half)


@triton.jit
def _interpreted(octets, kind: tl.constexpr):
    low, high = (octets & 15).to(tl.int32), (octets >> 4).to(tl.int32)
    if kind == FP4:
        low, high = _e2m1(low), _e2m1(high)
    else:
        shift = 8.0 if kind == SINT4 else 0.0
        low, high = low.to(tl.float32) - shift, high.to(tl.float32) - shift
    return tl.interleave(low, high)


@triton.jit
def _moved(octets, kind: tl.constexpr):
    two: tl.constexpr = (tl.bfloat16, tl.bfloat16)
    if kind == FP4:
        low, high = tl.inline_asm_elementwise(_FLOATS, _FOUR, [octets], dtype=two, is_pure=True, pack=4)
    elif kind == INT4:
        low, high = tl.inline_asm_elementwise(_UNSIGNED, _FOUR, [octets], dtype=two, is_pure=True, pack=4)
    else:
        low, high = tl.inline_asm_elementwise(_SIGNED, _FOUR, [octets], dtype=two, is_pure=True, pack=4)
    return tl.interleave(low, high)


@triton.jit
def _numbers(octets, kind: tl.constexpr):
    """(line, octet) into (line, input)."""
    if kind == INT8:
        found = octets.to(tl.float32)
    elif kind == FP8:
        if INTERPRETED:
            found = _e4m3(octets)
        else:
            found = tl.inline_asm_elementwise(_EIGHT, _TWO, [octets], dtype=tl.bfloat16, is_pure=True, pack=4)
    else:
        found = _interpreted(octets, kind) if INTERPRETED else _moved(octets, kind)
    return found


@triton.jit
def biased_halves(octets):
    """Low and high nibbles, each 128 more, in fp32."""
    if INTERPRETED:
        low, high = (octets & 15).to(tl.float32) + 128.0, (octets >> 4).to(tl.float32) + 128.0
    else:
        two: tl.constexpr = (tl.bfloat16, tl.bfloat16)
        low, high = tl.inline_asm_elementwise(_BIASED, _FOUR, [octets], dtype=two, is_pure=True, pack=4)
    return low.to(tl.float32), high.to(tl.float32)


@triton.jit
def by_hardware(codes, lines, first, inputs, form: tl.constexpr):
    """(line, input) of e4m3 in fp32, as the processor converts it: faster where nothing else waits for it."""
    place = first + tl.arange(0, form.depth)
    where = codes + (lines * inputs)[:, None] + place[None, :]
    found = tl.load(where) if form.is_even else tl.load(where, mask=(place < inputs)[None, :], other=0)
    if INTERPRETED:
        return _e4m3(found)
    return found.to(tl.float8e4nv, bitcast=True).to(tl.float16).to(tl.float32)


@triton.jit
def read_codes(codes, lines, first, inputs, form: tl.constexpr):
    """(line, input): numbers without scales. `lines`: rows of the weight."""
    halves: tl.constexpr = 1 if form.kind == INT8 or form.kind == FP8 else 2
    place = first // halves + tl.arange(0, form.depth // halves)
    where = codes + (lines * (inputs // halves))[:, None] + place[None, :]
    found = tl.load(where) if form.is_even else tl.load(where, mask=(place < inputs // halves)[None, :], other=0)
    return _numbers(found, form.kind)


@triton.jit
def _wide(bits, sort: tl.constexpr):
    """Scales as fp32."""
    if sort == PLAIN:
        found = bits.to(tl.float32)
    elif sort == E4M3:
        found = _e4m3(bits)
    else:
        found = (bits.to(tl.int32) << 23).to(tl.float32, bitcast=True)
    return found


@triton.jit
def scale_of(scales, rows, first, sort: tl.constexpr, block: tl.constexpr):
    """(line,): the scale of all inputs of a tile. `rows`: where each line's scales begin."""
    return _wide(tl.load(scales + rows + first // block), sort)


@triton.jit
def _spread(values, form: tl.constexpr, wide: tl.constexpr):
    """(line, input) from (line, group)."""
    groups: tl.constexpr = form.depth // form.block_inputs
    cut = tl.broadcast_to(values[:, :, None], [wide, groups, form.block_inputs])
    return tl.reshape(cut, [wide, form.depth])


@triton.jit
def read_quickly(weights, places, first, form: tl.constexpr, wide: tl.constexpr):
    """Nibbles in groups that a tile holds whole, in bf16, scaled two at a time. Scales and minimums are rounded to
    bf16: MXFP4's and NVFP4's are exact, products of int4 with minimums are off by 0.6 % instead of 0.2 %."""
    codes, sides = weights
    lines, rows, inputs = places
    halves: tl.constexpr = form.depth // 2
    place = first // 2 + tl.arange(0, halves)
    where = codes + (lines * (inputs // 2))[:, None] + place[None, :]
    octets = tl.load(where) if form.is_even else tl.load(where, mask=(place < inputs // 2)[None, :], other=0)
    numbers = _numbers(octets, FP4 if form.kind == FP4 else SINT4)
    group = first // form.block_inputs + tl.arange(0, form.depth // form.block_inputs)
    own, there = rows[:, None] + group[None, :], (group * form.block_inputs < inputs)[None, :]
    scale = _wide(tl.load(sides[0] + own, mask=there, other=0), form.scale)
    least = 0.0 * scale
    if form.has_minimums:
        least = tl.load(sides[1] + own, mask=there, other=0.0).to(tl.float32)
    if form.kind == INT4:
        least += 8.0 * scale
    if INTERPRETED:  # it cuts numbers off where they should be rounded
        return numbers * _spread(scale, form, wide) + _spread(least, form, wide)
    factor, added = _spread(scale.to(tl.bfloat16), form, wide), _spread(least.to(tl.bfloat16), form, wide)
    return tl.inline_asm_elementwise(_ADD, _THREE, [numbers, factor, added], dtype=tl.bfloat16, is_pure=True, pack=2)


def reads_quickly(facts: tuple[int, ...], depth: int, dtype: torch.dtype) -> bool:
    """Whether `read_quickly` reads such a weight's tiles for tokens of this data type."""
    kind, _, _, block, *_ = facts
    return kind in NIBBLES and dtype is torch.bfloat16 and block >= 16 and depth % block == 0


@triton.jit
def read_packed(weights, places, first, form: tl.constexpr, wide: tl.constexpr):
    """(line, input) of a tile, with its scales and minimums unless they come late. `places`: where each line begins in
    codes and in scales, and inputs."""
    codes, sides = weights
    lines, rows, inputs = places
    numbers = read_codes(codes, lines, first, inputs, form)
    if form.late > 0:
        found = numbers
    elif form.block_inputs % form.depth == 0 or form.block_inputs >= form.inputs:
        where = (rows + first // form.block_inputs)[:, None]
        found = numbers.to(tl.float32) * _wide(tl.load(sides[0] + where), form.scale)
        if form.has_minimums:
            found += tl.load(sides[1] + where).to(tl.float32)
    elif form.depth % form.block_inputs == 0:
        group = first // form.block_inputs + tl.arange(0, form.depth // form.block_inputs)
        where, there = rows[:, None] + group[None, :], (group * form.block_inputs < inputs)[None, :]
        own = _wide(tl.load(sides[0] + where, mask=there, other=0), form.scale)
        found = numbers.to(tl.float32) * _spread(own, form, wide)
        if form.has_minimums:
            least = tl.load(sides[1] + where, mask=there, other=0).to(tl.float32)
            found += _spread(least, form, wide)
    else:
        place = first + tl.arange(0, form.depth)
        where, there = rows[:, None] + (place // form.block_inputs)[None, :], (place < inputs)[None, :]
        found = numbers.to(tl.float32) * _wide(tl.load(sides[0] + where, mask=there, other=0), form.scale)
        if form.has_minimums:
            found += tl.load(sides[1] + where, mask=there, other=0).to(tl.float32)
    return found
