"""Number formats that memory can hold, and how wide each is."""

from __future__ import annotations

from enum import Enum

from quire.core.errors import InputError


class DType(str, Enum):
    """How a number is stored."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"
    FP8 = "fp8"
    INT8 = "int8"

    @property
    def bytes(self) -> int:
        return {"bf16": 2, "fp16": 2, "fp32": 4, "fp8": 1, "int8": 1}[self.value]

    @property
    def is_quantised(self) -> bool:
        return self.bytes == 1


_SPELLINGS = {
    "bfloat16": DType.BF16, "float16": DType.FP16, "half": DType.FP16, "float32": DType.FP32, "float": DType.FP32,
    "float8": DType.FP8, "float8_e4m3fn": DType.FP8, "fp8_e4m3": DType.FP8, "e4m3": DType.FP8,
}  # fmt: skip


def parse_dtype(text: str, what: str = "dtype") -> DType:
    """Accepts Quire's names and those of model configurations (`torch.bfloat16`, `float32`)."""
    name = text.lower().removeprefix("torch.")
    if name in _SPELLINGS:
        return _SPELLINGS[name]
    try:
        return DType(name)
    except ValueError:
        known = ", ".join(d.value for d in DType)
        raise InputError(f"{what} {text!r} is not known: choose one of {known}") from None
