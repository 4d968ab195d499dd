"""How weights of linear layers lie in main memory, where a CPU computes in fp32 (`worker/linears.py` lays them out).

    rows     in × out             a row for each input; one cache line more where rows would crowd into a few sets
    panels   out/256 × in × 256   a head that is tied to an embedding, a second time; the last panel is filled up

What is counted when a plan is made, and what is allocated when a model is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.dtypes import DType
from quire.core.units import ceil_div

LINE_BYTES = 64
CROWDED_BYTES = 2048
PANEL_OUTPUTS = 256


@dataclass(frozen=True, slots=True)
class Held:
    """As what, and where, a model's weights are held when it runs."""

    dtype: DType
    on_cpu: bool

    @property
    def is_laid_out(self) -> bool:
        """Products in other precisions go through other code, which lays weights out for itself."""
        return self.on_cpu and self.dtype is DType.FP32


def is_crowded(outputs: int) -> bool:
    """Whether rows of so many outputs get a cache line more."""
    return outputs > 0 and outputs * DType.FP32.bytes % CROWDED_BYTES == 0


def panels(outputs: int) -> int:
    return ceil_div(outputs, PANEL_OUTPUTS)


def panel_bytes(inputs: int, outputs: int) -> int:
    return panels(outputs) * inputs * PANEL_OUTPUTS * DType.FP32.bytes
