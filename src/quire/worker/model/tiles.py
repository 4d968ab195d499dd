"""Packed weights on a CPU as Quire's own products read them (`quire.native`): in tiles of 16 outputs.

    weight = (code − zero) · scale + minimum     scales and minimums of each group in fp16, times a power of two
    fp4, e2m1                                    twice a value is an integer
    fp8, e4m3                                    scales in fp32

Tokens are brought to 15 bits in blocks of 32 with a scale each; what is multiplied are integers. Only fp8 is multiplied
in fp32. The result of a token does not depend on how many others there are.
"""

from __future__ import annotations

from ctypes import byref
from math import frexp

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from quire.models.weight_layout import OUTPUTS_AT_A_TIME, plane_group, plane_inputs
from quire.native.library import Native, Tokens, Weight
from quire.worker.weights.packed import Codes, PackedWeight

TILES_AT_A_TIME = 64
"""Tiles that are packed at a time, with a byte for each code."""
BLOCK = 32
ZEROS = {Codes.INT4: 0, Codes.SINT4: 8, Codes.INT8: 128, Codes.FP4: 12, Codes.FP8: 0}
KINDS = {Codes.INT4: 0, Codes.SINT4: 0, Codes.INT8: 0, Codes.FP4: 1, Codes.FP8: 2}
"""As `native/quire.h` numbers them."""
LARGEST = 14
"""Scales and minimums are at most two to this power, times the factor: fp16 ends a little later."""


class Tiles(nn.Module):
    """A weight in tiles."""

    tiles: torch.Tensor
    order: torch.Tensor | None

    def __init__(self, packed: PackedWeight, native: Native) -> None:
        """`packed`: (out, in), or (expert, out, in)."""
        super().__init__()
        self.native, self.kind, self.has_integers = native, packed.kind, packed.kind is not Codes.FP8
        *_, self.outputs, self.inputs = packed.shape
        self.filled = plane_inputs(self.inputs, packed.columns)[0]
        self.half_group = packed.columns if self.filled > self.inputs else 0
        """Of groups that are filled up with zeros, how many inputs are given; 0: all."""
        group = plane_group(self.inputs, packed.columns)
        assert group is not None, packed.name
        self.group = group
        self.bits = 4 if packed.kind.has_nibbles else 8
        self.factor = _factor(packed)
        experts = [packed] if len(packed.shape) == 2 else [packed.expert(one) for one in range(packed.shape[0])]
        found = torch.cat([self._packed(expert.by_rows()) for expert in experts])
        self.register_buffer("tiles", found, persistent=False)
        self.register_buffer("order", packed.order, persistent=False)
        self.padded = len(self.tiles) // len(experts) * OUTPUTS_AT_A_TIME
        self.is_plain = self.order is None and not self.half_group and self.has_integers
        """Whether layers in C can multiply by it."""
        self.struct = self.weight()

    def weight(self, bias: torch.Tensor | None = None) -> Weight:
        """For C. The caller keeps the bias alive, which has a number for each padded output."""
        pointer = None if bias is None else bias.data_ptr()
        return Weight(self.tiles.data_ptr(), pointer, self.padded, self.filled, self.group, self.bits,
                      ZEROS[self.kind], KINDS[self.kind], self.factor)  # fmt: skip

    def multiply(self, tokens: torch.Tensor) -> torch.Tensor:
        """(token, in) into (token, out), in fp32."""
        return self._multiply(tokens if self.order is None else tokens[:, self.order], None, None, 0)

    def multiply_experts(self, tokens: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """(pair, in) into (pair, out), in fp32; `ends`: where each expert's pairs end."""
        all_ends = ends.numpy().astype(np.int64)
        used = np.flatnonzero(np.diff(all_ends, prepend=0))
        own = np.ascontiguousarray(all_ends[used])
        return self._multiply(tokens, used.ctypes.data, own.ctypes.data, len(used))

    def _multiply(self, tokens: torch.Tensor, experts: int | None, ends: int | None, count: int) -> torch.Tensor:
        tokens = _filled(tokens.float(), self.half_group).contiguous()
        rows = len(tokens)
        found = tokens.new_empty(rows, self.padded)
        if rows:
            own, kept = tokens_in_15_bits(rows if self.has_integers else 0, self.filled)
            team = self.native.team(torch.get_num_threads())
            self.native.library.quire_multiply(
                team, self.native.ops, byref(self.struct), byref(own), tokens.data_ptr(), found.data_ptr(), rows,
                experts, ends, count,
            )  # fmt: skip
            del kept
        return found[:, : self.outputs]

    def dequantised(self) -> torch.Tensor:
        """(out, in), with the rounding of a product."""
        return self.multiply(torch.eye(self.inputs)).T

    def _packed(self, packed: PackedWeight) -> torch.Tensor:
        """(tile, group, byte)"""
        outputs = TILES_AT_A_TIME * OUTPUTS_AT_A_TIME
        parts = [packed.part(begin, min(begin + outputs, self.outputs)) for begin in range(0, self.outputs, outputs)]
        groups = self.filled // self.group
        size = 2 * 2 * OUTPUTS_AT_A_TIME + OUTPUTS_AT_A_TIME * self.group * self.bits // 8
        found = torch.empty(-(-self.outputs // OUTPUTS_AT_A_TIME), groups, size, dtype=torch.uint8)
        for place, part in enumerate(parts):
            numbers, codes = self._numbers(part), self._codes(part)
            cut = found[place * TILES_AT_A_TIME : (place + 1) * TILES_AT_A_TIME]
            cut[..., : numbers.shape[-1]] = numbers
            cut[..., numbers.shape[-1] :] = codes
        return found

    def _numbers(self, packed: PackedWeight) -> torch.Tensor:
        """(tile, group, byte): 16 scales and 16 minimums in fp16, or 16 scales in fp32."""
        scales = _scales(packed)
        if not self.has_integers:
            return self._of_groups(packed, scales[None]).contiguous().view(torch.uint8).flatten(2)
        minimums = torch.zeros_like(scales) if packed.minimums is None else packed.minimums.float()
        both = torch.stack((scales, minimums)) / self.factor
        return self._of_groups(packed, both).half().contiguous().view(torch.uint8).flatten(2)

    def _of_groups(self, packed: PackedWeight, numbers: torch.Tensor) -> torch.Tensor:
        """(sort, out, group of the checkpoint) into (tile, group, sort, output)."""
        columns = plane_inputs(self.inputs, packed.columns)[1]
        spread = numbers.repeat_interleave(columns // self.group, dim=2)[..., : self.filled // self.group]
        filled = _whole_tiles(spread, 1)
        return filled.view(len(filled), -1, OUTPUTS_AT_A_TIME, filled.shape[-1]).permute(1, 3, 0, 2)

    def _codes(self, packed: PackedWeight) -> torch.Tensor:
        """(tile, group, byte)"""
        groups = self.filled // self.group
        if self.bits == 8:
            codes = packed.codes.view(torch.uint8)
            codes = _whole_tiles(_filled(codes ^ 128 if self.has_integers else codes, self.half_group), 0)
            together = 4 if self.has_integers else 1
            parts = codes.view(-1, OUTPUTS_AT_A_TIME, groups, self.group // together, together)
            return parts.permute(0, 2, 3, 1, 4).flatten(2)
        nibbles = torch.stack((packed.codes & 15, packed.codes >> 4), dim=-1).flatten(-2)
        codes = _whole_tiles(_filled(nibbles, self.half_group), 0)
        parts = codes.view(-1, OUTPUTS_AT_A_TIME, groups, self.group // 8, 2, 4)
        both = parts[..., 0, :] | parts[..., 1, :] << 4
        return both.permute(0, 2, 3, 1, 4).flatten(2)


def tokens_in_15_bits(count: int, inputs: int) -> tuple[Tokens, torch.Tensor]:
    """Room for tokens, and the memory where it is."""
    blocks = 4 * count * inputs // BLOCK
    sizes = (count * inputs, count * inputs, blocks, blocks, blocks)
    memory = torch.empty(sum(sizes), dtype=torch.uint8)
    begin, places = memory.data_ptr(), []
    for size in sizes:
        places.append(begin)
        begin += size
    return Tokens(*places, inputs), memory


def _scales(packed: PackedWeight) -> torch.Tensor:
    """(…, out, group), of what a code in a tile stands for."""
    scales = packed.scales.float() if packed.factors is None else packed.scales.float() * packed.factors
    return scales / 2 if packed.kind is Codes.FP4 else scales


def _factor(packed: PackedWeight) -> float:
    """One for all experts."""
    if packed.kind is Codes.FP8:
        return 1.0
    numbers = [_scales(packed.by_rows())] if packed.minimums is None else [packed.scales, packed.minimums]
    greatest = max(float(tensor.float().abs().max()) for tensor in numbers)
    return 2.0 ** (frexp(greatest)[1] - LARGEST) if 0 < greatest < float("inf") else 1.0


def _filled(numbers: torch.Tensor, half: int) -> torch.Tensor:
    """(…, in), with as many zeros after each half of a group."""
    if not half:
        return numbers
    *leading, inputs = numbers.shape
    return functional.pad(numbers.reshape(*leading, inputs // half, half), (0, half)).flatten(-2)


def _whole_tiles(numbers: torch.Tensor, axis: int) -> torch.Tensor:
    """Outputs filled up with zeros."""
    missing = -numbers.shape[axis] % OUTPUTS_AT_A_TIME
    return functional.pad(numbers, (0, 0, 0, missing)) if missing else numbers
