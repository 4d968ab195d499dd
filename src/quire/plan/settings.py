"""What a user may choose about memory, and where the bytes come from. Values only; no arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from quire.core.dtypes import DType
from quire.core.errors import PlanError

LARGEST_MATCH_UNIT = 64
DEFAULT_FRACTION = 0.92
RANGES = {
    "max_length": (1, 1 << 30),
    "max_requests": (1, 1 << 20),
    "batch_tokens": (1, 1 << 20),
    "speculative_tokens": (0, 1024),
    "reserved_pages": (0, 1 << 20),
    "tensor_parallel": (1, 4096),
    "pipeline_parallel": (1, 4096),
    "match_unit_tokens": (1, LARGEST_MATCH_UNIT),
    "host_bytes": (1, 1 << 60),
    "lease_bytes": (0, 1 << 60),
    "host_block_tokens": (1, 1 << 20),
}
"""Least and most of each setting: values beyond are typing mistakes, or overflow arithmetic in 64 bits."""
MOST_SHEETS = 1 << 32
STATE_DTYPES = (DType.BF16, DType.FP16, DType.FP32)
KV_DTYPES = (DType.BF16, DType.FP16, DType.FP32, DType.FP8, DType.INT8)


@dataclass(frozen=True, slots=True)
class Budget:
    """Where the pool's bytes come from; a pool or a number of sheets overrides the size computed from the memory."""

    memory_bytes: int | None = None
    """Of one device."""
    memory_fraction: float = DEFAULT_FRACTION
    """How much of it Quire may use; the rest is the ledger's margin."""
    pool_bytes: int | None = None
    """Per rank."""
    sheets: tuple[int, ...] | None = None
    """Per stage; one number stands for every stage."""
    device: str = "device"
    is_accelerator: bool = True
    is_whole_device: bool = False
    """No memory or fraction was given: the device's memory is the limit, and the fraction leaves room for estimates."""

    def __post_init__(self) -> None:
        if self.memory_bytes is None and self.pool_bytes is None and self.sheets is None:
            raise PlanError("no memory to plan for: give --device, --memory, --pool or --sheets")
        if self.pool_bytes is not None and self.sheets is not None:
            raise PlanError("--pool and --sheets both fix the pool: give one of them")
        if not 0 < self.memory_fraction <= 1:
            raise PlanError(f"a memory fraction of {self.memory_fraction} is out of range: choose above 0 and up to 1")
        if self.sheets is not None:
            least = 1 if len(self.sheets) == 1 else 0
            if min(self.sheets) < least or not any(self.sheets):
                raise PlanError(f"{min(self.sheets)} sheets cannot hold anything: give at least 1")
            if max(self.sheets) > MOST_SHEETS:
                raise PlanError(f"{max(self.sheets):,} sheets are out of range: give at most {MOST_SHEETS:,}")


@dataclass(frozen=True, slots=True)
class Settings:
    """The knobs of `quire plan` that shape memory."""

    max_length: int | None = None
    """None: the longest that fits."""
    max_requests: int = 256
    batch_tokens: int = 8192
    kv_dtype: DType = DType.BF16
    state_dtype: DType | None = None
    """None: the model's own."""
    page_tokens: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """Forced page sizes by kind name; "" stands for every kind that has tokens in its pages."""
    match_unit_tokens: int = LARGEST_MATCH_UNIT
    reserved_pages: int = 0
    """Pages of each kind that a backend keeps for itself; counted in every fit."""
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    stage_layers: tuple[int, ...] | None = None
    speculative_tokens: int = 0
    draft_bytes: int = 0
    """Host memory for earlier tokens that drafts are looked up in."""
    host_bytes: int | None = None
    host_block_tokens: int | None = None
    """None: one unit of reuse."""
    lease_bytes: int | None = None
    """Memory for leases on each rank. None: half of what the longest request leaves free."""

    def __post_init__(self) -> None:
        for name, (least, most) in RANGES.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise PlanError(f"{_option(name)} {value:,} is out of range: give at least {least}, at most {most:,}")
        if self.kv_dtype not in KV_DTYPES:
            raise PlanError(f"--kv-dtype {self.kv_dtype.value} is not one of {', '.join(d.value for d in KV_DTYPES)}")
        if self.state_dtype is not None and self.state_dtype not in STATE_DTYPES:
            names = ", ".join(d.value for d in STATE_DTYPES)
            raise PlanError(f"--state-dtype {self.state_dtype.value} is not one of {names}")


def _option(name: str) -> str:
    names = {"match_unit_tokens": "--match-unit", "host_bytes": "--host-memory", "host_block_tokens": "--host-block"}
    names["lease_bytes"] = "--lease-memory"
    return names.get(name, "--" + name.replace("_", "-"))
