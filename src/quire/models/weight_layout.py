"""How weights of linear layers lie in main memory where a CPU computes in fp32 (`worker/model/linears.py` does it).

    rows     in × out                    a row for each input
    panels   number × in × out/number    wide ones: as many panels as make each narrow, a power of two

Neither takes more than the numbers themselves. A head that is tied to an embedding is kept a second time, in panels;
the last of its outputs are filled up where panels do not divide them.

What is counted when a plan is made, and what is allocated when a model is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.dtypes import DType
from quire.core.units import ceil_div

PANEL_OUTPUTS = 384
"""Of a panel, at most."""


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """As what, and where, a model's weights are held when it runs."""

    dtype: DType
    on_cpu: bool
    packed: str | None = None
    """As what matrices are quantised when they are loaded (`--weights`)."""

    @property
    def has_panels(self) -> bool:
        """Products in other precisions go through other code, which lays weights out for itself."""
        return self.on_cpu and self.dtype is DType.FP32


def panels(outputs: int) -> int:
    """How many: threads that divide them between each other have equally many."""
    return 1 << (ceil_div(outputs, PANEL_OUTPUTS) - 1).bit_length()


def panel_bytes(inputs: int, outputs: int) -> int:
    return panels(outputs) * inputs * ceil_div(outputs, panels(outputs)) * DType.FP32.bytes
