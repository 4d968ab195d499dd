"""Memory of well-known accelerators, as their drivers report it to a process (a little below the number on the box)."""

from __future__ import annotations

import difflib
from types import MappingProxyType

from quire.core.errors import PlanError
from quire.core.units import GIB

DEVICES = MappingProxyType(
    {
        "t4": 14.5, "l4": 22.0, "a10": 22.0, "a10g": 22.0, "rtx-3090": 23.6, "rtx-4090": 23.5, "rtx-5090": 31.4,
        "l40s": 44.4, "a6000": 47.4, "rtx-pro-6000": 94.9, "a100-40gb": 39.4, "a100-80gb": 79.2, "h100": 79.1,
        "h100-nvl": 93.0, "h20": 95.1, "gh200": 94.5, "h200": 139.8, "b200": 178.3, "b300": 267.6, "gb200": 184.0,
        "mi210": 63.9, "mi250x": 63.9, "mi300x": 191.9, "mi325x": 255.9, "mi355x": 287.9,
    }
)  # fmt: skip
"""GiB per device."""
_ALIASES = {"a100": "a100-80gb", "4090": "rtx-4090", "3090": "rtx-3090", "5090": "rtx-5090", "h100-80gb": "h100"}


def device_bytes(name: str) -> int:
    key = name.lower().replace("_", "-")
    key = _ALIASES.get(key, key)
    if key not in DEVICES:
        near = difflib.get_close_matches(key, DEVICES, 3) or sorted(DEVICES)
        raise PlanError(
            f"device {name!r} is not known: choose {', '.join(near)}, give --memory, or neither for this machine"
        )
    return int(DEVICES[key] * GIB)
