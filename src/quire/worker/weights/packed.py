"""A weight in few bits, in one form for every format of quantised checkpoint.

    weight[o, i] = scales[o / rows, i / columns] · code[o, i]  (+ minimums[o / rows, i / columns])

    codes    stored as                                    value of a code
    int8     int8    (…, out, in)                         −128 … 127
    int4     uint8   (…, out, in/2), low nibble first     0 … 15
    fp8      float8  (…, out, in)                         e4m3
    fp4      uint8   (…, out, in/2), low nibble first     e2m1: ±0, ½, 1, 1½, 2, 3, 4, 6

Readers of formats make this form, layouts of linear layers are made from it (`worker/model`). Leading dimensions are
experts. In a folder that Quire writes, parameter `NAME.weight` lies as `NAME.weight.int4` (or another of the names
above), `NAME.weight.scales` and, where there are any, `NAME.weight.minimums`; rows are 1 there, and columns follow
from the shapes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch

from quire.core.errors import ModelError

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


class Codes(str, Enum):
    INT8 = "int8"
    INT4 = "int4"
    FP8 = "fp8"
    FP4 = "fp4"

    @property
    def has_nibbles(self) -> bool:
        return self in (Codes.INT4, Codes.FP4)

    @property
    def stored(self) -> torch.dtype:
        return {Codes.INT8: torch.int8, Codes.FP8: torch.float8_e4m3fn}.get(self, torch.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """See above. Shapes are checked: a checkpoint whose scales do not fit its codes is refused by `name`."""

    name: str
    kind: Codes
    codes: torch.Tensor
    scales: torch.Tensor
    """(…, ⌈out/rows⌉, ⌈in/columns⌉), a float type."""
    minimums: torch.Tensor | None = None
    """Of the shape of `scales`."""
    rows: int = 1
    columns: int = 0
    """How many inputs share a scale; 0: all of them."""

    def __post_init__(self) -> None:
        *experts, outputs, inputs = self.shape
        expected = (*experts, -(-outputs // self.rows), -(-inputs // (self.columns or inputs)))
        if self.codes.dtype is not self.kind.stored:
            raise ModelError(f"{self.name} has codes of {self.codes.dtype}, expected are {self.kind.stored}")
        for sort, tensor in (("scales", self.scales), ("minimums", self.minimums)):
            if tensor is not None and tuple(tensor.shape) != expected:
                raise ModelError(f"{self.name} has {sort} of shape {tuple(tensor.shape)}, expected is {expected}")

    @property
    def shape(self) -> tuple[int, ...]:
        """(…, out, in) of the weight."""
        *leading, stored = self.codes.shape
        return (*leading, 2 * stored if self.kind.has_nibbles else stored)

    @property
    def bytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes + (0 if self.minimums is None else self.minimums.nbytes)

    def values(self) -> torch.Tensor:
        """The codes as fp32, (…, out, in)."""
        if not self.kind.has_nibbles:
            return self.codes.float()
        nibbles = torch.stack((self.codes & 15, self.codes >> 4), dim=-1).flatten(-2)
        if self.kind is Codes.INT4:
            return nibbles.float()
        return torch.tensor(E2M1, device=self.codes.device)[nibbles.int()]

    def dequantised(self) -> torch.Tensor:
        """The weight in fp32, (…, out, in)."""
        found = self.values() * self._spread(self.scales)
        return found if self.minimums is None else found + self._spread(self.minimums)

    def _spread(self, scales: torch.Tensor) -> torch.Tensor:
        """A number for each code, from a number for each block of codes."""
        *_, outputs, inputs = self.shape
        rows = scales.float().repeat_interleave(self.rows, dim=-2)[..., :outputs, :]
        return rows.repeat_interleave(self.columns or inputs, dim=-1)[..., :inputs]
