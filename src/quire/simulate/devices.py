"""Memory bandwidth and FLOP/s of well-known accelerators: figures of public datasheets, and the fraction reached.

The names are those of `quire.planner.devices`.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from quire.core.errors import InputError

DATASHEETS = MappingProxyType(
    {
        "t4": (320, 65), "l4": (300, 121), "a10": (600, 125), "a10g": (600, 70), "rtx-3090": (936, 71),
        "rtx-4090": (1008, 165), "rtx-5090": (1792, 209), "l40s": (864, 362), "a6000": (768, 155),
        "rtx-pro-6000": (1792, 504), "a100-40gb": (1555, 312), "a100-80gb": (2039, 312), "h100": (3350, 989),
        "h100-nvl": (3938, 835), "h20": (4000, 148), "gh200": (4000, 989), "h200": (4800, 989), "b200": (8000, 2250),
        "b300": (8000, 2250), "gb200": (8000, 2500), "mi210": (1638, 181), "mi250x": (1638, 191),
        "mi300x": (5300, 1307), "mi325x": (6000, 1307), "mi355x": (8000, 2516),
    }
)  # fmt: skip
"""GB/s of memory; dense TFLOP/s in bf16 (fp16 where there is no bf16). An MI250X is counted as its two halves."""
_ALIASES = {"a100": "a100-80gb", "4090": "rtx-4090", "3090": "rtx-3090", "5090": "rtx-5090", "h100-80gb": "h100"}
MEMORY_EFFICIENCY = 0.9
"""Fraction of the datasheet's bandwidth when large tensors are read: an H200 was measured at 4.34 of 4.8 TB/s."""
COMPUTE_EFFICIENCY = 0.6
"""Fraction of the datasheet's FLOP/s over a whole step of a large model. An assumption: measure and give --flops."""


@dataclass(frozen=True, slots=True)
class Speed:
    """What one device reaches."""

    bytes_per_second: float
    flops_per_second: float


def speed_of(device: str | None, gigabytes: float | None, teraflops: float | None) -> Speed:
    """The device's figures times their efficiency; figures given by the user are used unchanged."""
    name = (device or "").lower().replace("_", "-")
    sheet = DATASHEETS.get(_ALIASES.get(name, name))
    missing = [name for name, given in (("--bandwidth", gigabytes), ("--flops", teraflops)) if given is None]
    if sheet is None and missing:
        raise InputError(
            f"how fast is {device or 'the device'}? give {' and '.join(missing)}, or a --device with known figures: "
            + ", ".join(DATASHEETS)
        )
    known = sheet or (0, 0)
    return Speed(
        1e9 * (MEMORY_EFFICIENCY * known[0] if gigabytes is None else gigabytes),
        1e12 * (COMPUTE_EFFICIENCY * known[1] if teraflops is None else teraflops),
    )
