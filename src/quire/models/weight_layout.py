"""How weights of linear layers lie in main memory where a CPU computes in fp32 (`worker/model/linears.py` does it).

    rows     in × out                    a row for each input
    panels   number × in × out/number    wide ones: as many panels as make each narrow, a power of two

Neither takes more than the numbers themselves. A head that is tied to an embedding is kept a second time, in panels;
the last of its outputs are filled up where panels do not divide them.

Weights that a checkpoint packs into few bits stay packed, in tiles for Quire's products in C (`worker/model/tiles.py`)
or in planes of 4 bits for torch's (`packed_cpu.py`), where the CPU has one of them. Both are called planes here.

What is counted when a plan is made, and what is allocated when a model is loaded.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass

from quire.core.dtypes import DType
from quire.core.units import ceil_div
from quire.native.library import native

PANEL_OUTPUTS = 384
"""Of a panel, at most."""
OUTPUTS_AT_A_TIME = 16
"""Outputs of a packed weight are filled up to a multiple of this."""
PLANE_GROUPS = (256, 128, 64, 32)
"""How many inputs may share a scale and a zero, in planes."""


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """As what, and where, a model's weights are held when it runs."""

    dtype: DType
    on_cpu: bool
    packed: str | None = None
    """As what matrices are quantised when they are loaded (`--weights`)."""

    @property
    def has_planes(self) -> bool:
        return self.on_cpu and has_nibble_products()

    @property
    def has_panels(self) -> bool:
        """Products in other precisions go through other code, which lays weights out for itself."""
        return self.on_cpu and self.dtype is DType.FP32


def panels(outputs: int) -> int:
    """How many: threads that divide them between each other have equally many."""
    return 1 << (ceil_div(outputs, PANEL_OUTPUTS) - 1).bit_length()


def panel_bytes(inputs: int, outputs: int) -> int:
    return panels(outputs) * inputs * ceil_div(outputs, panels(outputs)) * DType.FP32.bytes


def has_nibble_products() -> bool:
    """Whether this machine's CPU has fast products with weights of few bits: the library in C, or torch's for x86."""
    return native() is not None or platform.machine().lower() in ("x86_64", "amd64")


def plane_inputs(inputs: int, columns: int) -> tuple[int, int]:
    """Inputs on planes, and how many share a scale: half a group is filled up with zeros."""
    half = PLANE_GROUPS[-1] // 2
    return (2 * inputs, 2 * half) if columns == half else (inputs, columns or inputs)


def plane_group(inputs: int, columns: int) -> int | None:
    """The largest group for inputs of which `columns` share a scale (0: all do). None: planes cannot hold them."""
    filled, shared = plane_inputs(inputs, columns)
    return next((group for group in PLANE_GROUPS if not filled % group and not shared % group), None)


def plane_bits(bits: int, outputs: int, inputs: int, columns: int) -> int | None:
    """Of a weight with codes of 4 or 8 bits: a scale and a minimum in 16 bits for each group, twice on two planes."""
    group = plane_group(inputs, columns)
    if group is None or bits not in (4, 8):
        return None
    filled, (inputs, _) = ceil_div(outputs, OUTPUTS_AT_A_TIME) * OUTPUTS_AT_A_TIME, plane_inputs(inputs, columns)
    if native() is not None:
        return filled * (bits * inputs + 32 * inputs // group)
    return bits // 4 * filled * (4 * inputs + 32 * inputs // group)


def bits_of_8() -> int:
    """Of each weight with codes of 8 bits in groups of 32."""
    return 10 if native() is None else 9
