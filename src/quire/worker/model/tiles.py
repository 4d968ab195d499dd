"""Packed weights on a CPU as Quire's own products read them (`quire.native`): in tiles of 16 outputs.

    weight = (code − zero) · scale + minimum     scales and minimums of each group in fp16, times a power of two

Tokens are brought to 15 bits in blocks of 32 with a scale each; what is multiplied are integers. The result of a token
does not depend on how many others there are.
"""

from __future__ import annotations

from ctypes import byref
from math import frexp

import torch
from torch import nn
from torch.nn import functional

from quire.models.weight_layout import OUTPUTS_AT_A_TIME, plane_group, plane_inputs
from quire.native.library import Native, Tokens, Weight
from quire.worker.weights.packed import Codes, PackedWeight

TILES_AT_A_TIME = 64
"""Tiles that are packed at a time, with a byte for each code."""
BLOCK = 32
ZEROS = {Codes.INT4: 0, Codes.SINT4: 8, Codes.INT8: 128}
LARGEST = 14
"""Scales and minimums are at most two to this power, times the factor: fp16 ends a little later."""


class Tiles(nn.Module):
    """A weight in tiles."""

    tiles: torch.Tensor
    order: torch.Tensor | None

    def __init__(self, packed: PackedWeight, native: Native) -> None:
        super().__init__()
        self.native = native
        self.outputs, self.inputs = packed.shape
        self.filled = plane_inputs(self.inputs, packed.columns)[0]
        self.half_group = packed.columns if self.filled > self.inputs else 0
        """Of groups that are filled up with zeros, how many inputs are given; 0: all."""
        group = plane_group(self.inputs, packed.columns)
        assert group is not None, packed.name
        self.group, self.zero = group, ZEROS[packed.kind]
        self.bits = 8 if packed.kind is Codes.INT8 else 4
        self.factor = _factor(packed)
        self.register_buffer("tiles", self._packed(packed.by_rows()), persistent=False)
        self.register_buffer("order", packed.order, persistent=False)
        self.padded = len(self.tiles) * OUTPUTS_AT_A_TIME
        self.is_plain = self.order is None and not self.half_group
        self.struct = self.weight()

    def weight(self, bias: torch.Tensor | None = None) -> Weight:
        """For C. The caller keeps the bias alive, which has a number for each padded output."""
        pointer = None if bias is None else bias.data_ptr()
        return Weight(self.tiles.data_ptr(), pointer, self.padded, self.filled, self.group, self.bits, self.zero,
                      self.factor)  # fmt: skip

    def multiply(self, tokens: torch.Tensor) -> torch.Tensor:
        """(token, in) into (token, out), in fp32."""
        if self.order is not None:
            tokens = tokens[:, self.order]
        tokens = _filled(tokens.float(), self.half_group).contiguous()
        count = len(tokens)
        found = tokens.new_empty(count, self.padded)
        if count:
            own, kept = tokens_in_15_bits(count, self.filled)
            team = self.native.team(torch.get_num_threads())
            self.native.library.quire_multiply(
                team, self.native.ops, byref(self.struct), byref(own), tokens.data_ptr(), found.data_ptr(), count
            )
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
        """(tile, group, byte): 16 scales, 16 minimums."""
        scales = packed.scales.float()
        minimums = torch.zeros_like(scales) if packed.minimums is None else packed.minimums.float()
        both = torch.stack((scales, minimums)) / self.factor
        columns = plane_inputs(self.inputs, packed.columns)[1]
        spread = both.repeat_interleave(columns // self.group, dim=2)[..., : self.filled // self.group]
        spread = _whole_tiles(spread, 1).half().view(2, -1, OUTPUTS_AT_A_TIME, self.filled // self.group)
        return spread.permute(1, 3, 0, 2).contiguous().view(torch.uint8).flatten(2)

    def _codes(self, packed: PackedWeight) -> torch.Tensor:
        """(tile, group, byte)"""
        if self.bits == 8:
            codes = _filled(packed.codes.view(torch.uint8) ^ 128, self.half_group)
            parts = _whole_tiles(codes, 0).view(-1, OUTPUTS_AT_A_TIME, self.filled // self.group, self.group // 4, 4)
            return parts.permute(0, 2, 3, 1, 4).flatten(2)
        nibbles = torch.stack((packed.codes & 15, packed.codes >> 4), dim=-1).flatten(-2)
        codes = _whole_tiles(_filled(nibbles, self.half_group), 0)
        parts = codes.view(-1, OUTPUTS_AT_A_TIME, self.filled // self.group, self.group // 8, 2, 4)
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


def _factor(packed: PackedWeight) -> float:
    numbers = [packed.scales] if packed.minimums is None else [packed.scales, packed.minimums]
    greatest = max(float(tensor.abs().max()) for tensor in numbers)
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
