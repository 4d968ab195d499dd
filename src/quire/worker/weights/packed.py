"""A weight in few bits, in one form for every format of quantised checkpoint.

    weight[o, i] = scales[o / rows, i / columns] · code[o, i]  (+ minimums[o / rows, i / columns])  (· factors[o])

    codes    stored as                                    value of a code
    int8     int8    (…, out, in)                         −128 … 127
    int4     uint8   (…, out, in/2), low nibble first     0 … 15
    sint4    uint8   (…, out, in/2), low nibble first     −8 … 7: the nibble less 8
    fp8      float8  (…, out, in)                         e4m3
    fp4      uint8   (…, out, in/2), low nibble first     e2m1: ±0, ½, 1, 1½, 2, 3, 4, 6

Readers of formats make this form, layouts of linear layers are made from it (`worker/model`). Leading dimensions are
experts. In a folder that Quire writes, parameter `NAME.weight` lies as `NAME.weight.int4` (or another of the names
above), `NAME.weight.scales` and, where there are any, `NAME.weight.minimums`; rows are 1 there, and columns follow
from the shapes. Factors exist for NVFP4 alone, whose scales are too coarse without them; an order for GPTQ with
act-order, whose groups are not neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum

import torch

from quire.core.errors import ModelError


class Codes(str, Enum):
    INT8 = "int8"
    INT4 = "int4"
    SINT4 = "sint4"
    FP8 = "fp8"
    FP4 = "fp4"

    @property
    def has_nibbles(self) -> bool:
        return self in (Codes.INT4, Codes.SINT4, Codes.FP4)

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
    factors: torch.Tensor | None = None
    """(…, out, 1), fp32."""
    order: torch.Tensor | None = None
    """(…, in), int32: the input that each column of codes belongs to. None: in order."""
    rows: int = 1
    columns: int = 0
    """How many inputs share a scale; 0: all of them."""

    def __post_init__(self) -> None:
        *experts, outputs, inputs = self.shape
        expected = (*experts, -(-outputs // self.rows), -(-inputs // (self.columns or inputs)))
        if self.codes.dtype is not self.kind.stored:
            raise ModelError(f"{self.name} has codes of {self.codes.dtype}, expected are {self.kind.stored}")
        self._require("scales", self.scales, expected)
        self._require("minimums", self.minimums, expected)
        self._require("factors", self.factors, (*experts, outputs, 1))
        self._require("an order", self.order, (*experts, inputs))

    def _require(self, sort: str, tensor: torch.Tensor | None, expected: tuple[int, ...]) -> None:
        if tensor is not None and tuple(tensor.shape) != expected:
            raise ModelError(f"{self.name} has {sort} of shape {tuple(tensor.shape)}, expected is {expected}")

    @property
    def shape(self) -> tuple[int, ...]:
        """(…, out, in) of the weight."""
        *leading, stored = self.codes.shape
        return (*leading, 2 * stored if self.kind.has_nibbles else stored)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """All that lies in memory, by field."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @property
    def layout(self) -> tuple[object, ...]:
        """Weights of one layout can be stacked, if their orders are equal."""
        sorts = {name: tensor.dtype for name, tensor in self.tensors.items()}
        return self.kind, self.shape[-1], self.rows, self.columns or self.shape[-1], tuple(sorts.items())

    def mapped(self, change: Callable[[torch.Tensor], torch.Tensor]) -> PackedWeight:
        """With another tensor for each."""
        return self.having({name: change(tensor) for name, tensor in self.tensors.items()})

    def having(self, tensors: Mapping[str, torch.Tensor], **sizes: int) -> PackedWeight:
        """With other tensors, by field."""
        return replace(self, **tensors, **sizes)  # type: ignore[arg-type]

    def values(self) -> torch.Tensor:
        """The codes as fp32, (…, out, in)."""
        return values(self.kind, self.codes)

    def dequantised(self) -> torch.Tensor:
        """The weight in fp32, (…, out, in), its inputs in the model's order."""
        found = self.values() * self._spread(self.scales)
        found = found if self.minimums is None else found + self._spread(self.minimums)
        found = found if self.factors is None else found * self.factors
        if self.order is None:
            return found
        return torch.gather(found, -1, torch.argsort(self.order)[..., None, :].expand(found.shape))

    def part(self, begin: int, end: int) -> PackedWeight:
        """Some outputs; where rows share scales, `begin` is the first of its rows."""
        return self._cut(slice(begin, end), slice(begin // self.rows, -(-end // self.rows)))

    def _cut(self, outputs: slice, blocks: slice) -> PackedWeight:
        cuts = {"codes": outputs, "factors": outputs, "scales": blocks, "minimums": blocks}
        parts = {name: tensor[..., cuts[name], :] for name, tensor in self.tensors.items() if name in cuts}
        return self.having(parts)

    def expert(self, number: int) -> PackedWeight:
        """One of the leading dimension."""
        return self.mapped(lambda tensor: tensor[number])

    def by_rows(self) -> PackedWeight:
        """The same with scales for each output, as they must be to be cut and stacked anywhere."""
        if self.rows == 1:
            return self
        blocks = {name: tensor for name, tensor in self.tensors.items() if name in ("scales", "minimums")}
        return self.having({name: self._of_rows(tensor) for name, tensor in blocks.items()}, rows=1)

    def _of_rows(self, scales: torch.Tensor) -> torch.Tensor:
        return scales.repeat_interleave(self.rows, dim=-2)[..., : self.shape[-2], :]

    def _spread(self, scales: torch.Tensor) -> torch.Tensor:
        """A number for each code, from a number for each block of codes."""
        if scales.shape[-1] == 1:
            return self._of_rows(scales.float())
        return self._of_rows(scales.float()).repeat_interleave(self.columns, dim=-1)[..., : self.shape[-1]]


def values(kind: Codes, codes: torch.Tensor) -> torch.Tensor:
    """Codes as fp32, (…, out, in)."""
    if not kind.has_nibbles:
        return codes.float()
    nibbles = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2)
    if kind is Codes.FP4:
        return _e2m1(nibbles)
    return nibbles.float() - (8 if kind is Codes.SINT4 else 0)


def _e2m1(nibbles: torch.Tensor) -> torch.Tensor:
    """By arithmetic rather than from a table, which would have to be copied to the device. The value, doubled, is
    0, 1, 2, 3, 4, 6, 8 or 12."""
    sizes = (nibbles & 7).int()
    doubled = torch.where(sizes < 4, sizes, (2 + (sizes & 1)) << ((sizes >> 1) - 1).clamp(min=0))
    return doubled.float() * torch.where(nibbles < 8, 0.5, -0.5)


def stacked(weights: Sequence[PackedWeight]) -> PackedWeight | None:
    """One weight with the outputs of all, one after another. None: their layouts differ, or a block of rows would be
    cut: scales for each row take more memory than one product saves time."""
    first = weights[0]
    are_cut = any(weight.shape[-2] % weight.rows for weight in weights[:-1])
    if are_cut or any(weight.layout != first.layout or not _same(weight.order, first.order) for weight in weights):
        return None
    parts = {name: [weight.tensors[name] for weight in weights] for name in first.tensors if name != "order"}
    joined = {name: torch.cat(tensors, dim=-2) for name, tensors in parts.items()}
    return first.having(joined)


def _same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    return one is other or (one is not None and other is not None and one.equal(other))
