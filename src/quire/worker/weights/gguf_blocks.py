"""Blocks of quantised numbers in a GGUF file → codes, scales and minimums (`packed.py`), without loss. Needs no torch.

    type     codes               of how many   scales and minimums
    Q4_0     int4                32            d, −8·d
    Q4_1     int4                32            d, m
    Q5_0     int8  −16 … 15      32            d
    Q5_1     int8    0 … 31      32            d, m
    Q8_0     int8                32            d
    Q2_K     int4    0 …  3      16            d·s, −m·t
    Q3_K     int4    0 …  7      16            d·s, −4·d·s
    Q4_K     int4                32            d·s, −m·t
    Q5_K     int8    0 … 31      32            d·s, −m·t
    Q6_K     int8  −32 … 31      16            d·s
    MXFP4    fp4                 32            a power of two, as bf16

In K-quants 256 numbers share d and m (fp16), and each group has s and t of few bits: the products need more bits than
fp16 has, and fit fp32.

A row of a tensor is a run of whole blocks: rows may be moved, joined and cut as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from quire.worker.weights.write import BYTES

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
Unpacked = tuple[Array, Array, Array | None]
"""Codes (block, number), scales (block, group) and minimums."""
CHUNK_NUMBERS = 1 << 22
"""Numbers unpacked at a time: temporary arrays stay small."""


@dataclass(frozen=True, slots=True)
class Stored:
    """An array and the name of its type in a file of safetensors; bf16 lies in 16-bit integers."""

    values: Array
    dtype: str


@dataclass(frozen=True, slots=True)
class Packing:
    """What a type of blocks becomes."""

    codes: str
    """int4, int8 or fp4."""
    columns: int
    """Numbers that share a scale."""
    scale_dtype: str
    """F16, F32 or BF16."""
    has_minimums: bool
    unpack: Callable[[Bytes], Unpacked]

    @property
    def bits(self) -> Fraction:
        """Of a number, with its share of scale and minimum."""
        scale = Fraction(8 * BYTES[self.scale_dtype], self.columns)
        return (8 if self.codes == "int8" else 4) + scale * (1 + self.has_minimums)

    def parts(self, shape: tuple[int, ...]) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Types and shapes of what a weight of that shape becomes, by the ends of their names."""
        *rows, inputs = shape
        has_nibbles = self.codes != "int8"
        codes = ("U8" if has_nibbles else "I8", (*rows, inputs // 2 if has_nibbles else inputs))
        scales = (self.scale_dtype, (*rows, inputs // self.columns))
        return {self.codes: codes, "scales": scales} | ({"minimums": scales} if self.has_minimums else {})


_NUMPY = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "U8": np.uint8, "I8": np.int8}


def tensor_bytes(sort: GGMLQuantizationType, shape: tuple[int, ...]) -> int:
    """In the file. A row is a run of whole blocks."""
    numbers, size = GGML_QUANT_SIZES[sort]
    if shape[-1] % numbers:
        raise ValueError(f"rows of {shape[-1]} numbers are not a multiple of {sort.name}'s {numbers}")
    return math.prod(shape) // numbers * size


def pack(data: Bytes, sort: GGMLQuantizationType, shape: tuple[int, ...], packing: Packing) -> dict[str, Stored]:
    """The parts of a tensor, from its bytes in the file. `packing`: of this type, or one that it fits into."""
    numbers, size = GGML_QUANT_SIZES[sort]
    blocks = data.reshape(-1, size)
    own = PACKINGS[sort]
    parts = {name: (np.empty(lies, _NUMPY[dtype]), dtype) for name, (dtype, lies) in packing.parts(shape).items()}
    step = max(1, CHUNK_NUMBERS // numbers)
    for first in range(0, len(blocks), step):
        found = own.unpack(blocks[first : first + step])
        for name, values in _fitted(found, own, packing).items():
            target = parts[name][0].reshape(len(blocks), -1)
            target[first : first + step] = values.reshape(len(values), -1)
    return {name: Stored(values, dtype) for name, (values, dtype) in parts.items()}


def common(packings: list[Packing]) -> Packing:
    """One into which tensors of all these types fit exactly: they are parts of one weight."""
    first = packings[0]
    if all(packing == first for packing in packings):
        return first
    codes = {packing.codes for packing in packings}
    if "fp4" in codes:
        raise ValueError("MXFP4 and another type")
    return replace(
        first,
        codes="int8" if "int8" in codes else "int4",
        columns=min(packing.columns for packing in packings),
        scale_dtype="F32" if any(packing.scale_dtype == "F32" for packing in packings) else "F16",
        has_minimums=any(packing.has_minimums for packing in packings),
    )


def _fitted(found: Unpacked, own: Packing, packing: Packing) -> dict[str, Array]:
    codes, scales, minimums = found
    repeats = own.columns // packing.columns
    scales = scales.repeat(repeats, axis=1)
    parts = {"scales": scales}
    if packing.has_minimums:
        parts["minimums"] = np.zeros_like(scales) if minimums is None else minimums.repeat(repeats, axis=1)
    parts[packing.codes] = codes if packing.codes == "int8" else codes[:, 0::2] | codes[:, 1::2] << 4
    return parts


def _half(blocks: Bytes, place: int) -> Array:
    """A 16-bit float of each block."""
    return np.ascontiguousarray(blocks[:, place : place + 2]).view(np.float16)


def _runs(data: Bytes, bits: int, width: int) -> Array:
    """Numbers of few bits: a run of `width` bytes holds the lowest bits of `width` numbers, then their next ones."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    runs = data.reshape(len(data), -1, 1, width) >> shifts & np.uint8((1 << bits) - 1)
    return runs.reshape(len(data), -1)


def _fifth_bits(data: Bytes) -> Array:
    """Bit i of four bytes, for number i."""
    return np.unpackbits(data, axis=1, bitorder="little")


def _q4_0(blocks: Bytes) -> Unpacked:
    scale = _half(blocks, 0)
    return _runs(blocks[:, 2:], 4, 16), scale, scale * np.float16(-8)


def _q4_1(blocks: Bytes) -> Unpacked:
    return _runs(blocks[:, 4:], 4, 16), _half(blocks, 0), _half(blocks, 2)


def _q5_0(blocks: Bytes) -> Unpacked:
    codes = _runs(blocks[:, 6:], 4, 16) | _fifth_bits(blocks[:, 2:6]) << 4
    return codes.view(np.int8) - np.int8(16), _half(blocks, 0), None


def _q5_1(blocks: Bytes) -> Unpacked:
    codes = _runs(blocks[:, 8:], 4, 16) | _fifth_bits(blocks[:, 4:8]) << 4
    return codes.view(np.int8), _half(blocks, 0), _half(blocks, 2)


def _q8_0(blocks: Bytes) -> Unpacked:
    return blocks[:, 2:].view(np.int8), _half(blocks, 0), None


def _q2_k(blocks: Bytes) -> Unpacked:
    scale, minimum = _half(blocks, 80).astype(np.float32), _half(blocks, 82).astype(np.float32)
    return _runs(blocks[:, 16:80], 2, 32), scale * (blocks[:, :16] & 15), -(minimum * (blocks[:, :16] >> 4))


def _q3_k(blocks: Bytes) -> Unpacked:
    codes = _runs(blocks[:, 32:96], 2, 32) | _runs(blocks[:, :32], 1, 32) << 2
    steps = _runs(blocks[:, 96:104], 4, 8) | _runs(blocks[:, 104:108], 2, 4) << 4
    scales = _half(blocks, 108).astype(np.float32) * (steps.view(np.int8) - np.int8(32))
    return codes, scales, -4 * scales


def _six_bits(data: Bytes) -> tuple[Array, Array]:
    """Eight scales and eight minimums in twelve bytes: of the first four groups as they are, of the others four bits
    in the last bytes and two above the first ones."""
    low, minimum, mixed = data[:, :4], data[:, 4:8], data[:, 8:]
    steps = np.hstack((low & 63, mixed & 15 | low >> 6 << 4))
    return steps, np.hstack((minimum & 63, mixed >> 4 | minimum >> 6 << 4))


def _scaled(blocks: Bytes) -> tuple[Array, Array]:
    steps, minimum_steps = _six_bits(blocks[:, 4:16])
    return _half(blocks, 0).astype(np.float32) * steps, -(_half(blocks, 2).astype(np.float32) * minimum_steps)


def _q4_k(blocks: Bytes) -> Unpacked:
    return _runs(blocks[:, 16:], 4, 32), *_scaled(blocks)


def _q5_k(blocks: Bytes) -> Unpacked:
    codes = _runs(blocks[:, 48:], 4, 32) | _runs(blocks[:, 16:48], 1, 32) << 4
    return codes.view(np.int8), *_scaled(blocks)


def _q6_k(blocks: Bytes) -> Unpacked:
    codes = _runs(blocks[:, :128], 4, 64) | _runs(blocks[:, 128:192], 2, 32) << 4
    scales = _half(blocks, 208).astype(np.float32) * blocks[:, 192:208].view(np.int8)
    return codes.view(np.int8) - np.int8(32), scales, None


def _mxfp4(blocks: Bytes) -> Unpacked:
    exponent = blocks[:, :1].astype(np.uint16)
    scale = np.where(exponent == 0, np.uint16(1 << 6), exponent << 7)  # 2^(e − 127), as bf16; the least is subnormal
    return _runs(blocks[:, 1:], 4, 16), scale, None


_Q = GGMLQuantizationType
PACKINGS: dict[GGMLQuantizationType, Packing] = {
    _Q.Q4_0: Packing("int4", 32, "F16", True, _q4_0),
    _Q.Q4_1: Packing("int4", 32, "F16", True, _q4_1),
    _Q.Q5_0: Packing("int8", 32, "F16", False, _q5_0),
    _Q.Q5_1: Packing("int8", 32, "F16", True, _q5_1),
    _Q.Q8_0: Packing("int8", 32, "F16", False, _q8_0),
    _Q.Q2_K: Packing("int4", 16, "F32", True, _q2_k),
    _Q.Q3_K: Packing("int4", 16, "F32", True, _q3_k),
    _Q.Q4_K: Packing("int4", 32, "F32", True, _q4_k),
    _Q.Q5_K: Packing("int8", 32, "F32", True, _q5_k),
    _Q.Q6_K: Packing("int8", 16, "F32", False, _q6_k),
    _Q.MXFP4: Packing("fp4", 32, "BF16", False, _mxfp4),
}
FLOATS = {_Q.F32: "F32", _Q.F16: "F16", _Q.BF16: "BF16"}
"""Types that stay as they are."""
