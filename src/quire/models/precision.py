"""How many bits the checkpoint spends on each sort of parameter."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from quire.core.dtypes import parse_dtype
from quire.core.errors import InputError, ModelError
from quire.models.blueprint import Weights
from quire.models.fields import Fields, shown

MXFP4_BITS = Fraction(17, 4)
"""4 bits and one 8-bit scale for each 32 numbers."""
MOST_BITS = 64
NVFP4_BITS = Fraction(9, 2)
"""4 bits and one 8-bit scale for each 16 numbers."""


@dataclass(frozen=True, slots=True)
class Precision:
    plain: Fraction
    matrices: Fraction
    experts: Fraction
    has_panels: bool = False
    """A tied head is kept a second time (`models/weight_layout.py`)."""
    embedding: Fraction | None = None
    """None: no quantisation touches it."""
    head: Fraction | None = None

    def embedding_bytes(self, table: int, others: int) -> int:
        """The vocabulary's table, and those besides."""
        return math.ceil((table * (self.embedding or self.plain) + others * self.plain) / 8)

    def head_bytes(self, matrix: int, bias: int) -> int:
        return math.ceil((matrix * (self.head or self.plain) + bias * self.plain) / 8)

    def divided(self, weights: Weights) -> int:
        bits = weights.matrices * self.matrices + weights.experts * self.experts + weights.plain * self.plain
        return math.ceil(bits / 8)

    def replicated(self, weights: Weights) -> int:
        return math.ceil((weights.latent * self.matrices + weights.replicated * self.plain) / 8)


def read_precision(fields: Fields) -> Precision:
    bits = _dtype_bits(fields)
    section = fields.section("quantization_config") or fields.section("quantization")
    expert_dtype = fields.text("expert_dtype")
    if section is None:
        return Precision(bits, bits, bits)
    if section.text("quant_method") == "quire":
        return _packed(section, bits)
    matrices, experts = _quantised_bits(section, bits, fields.notes)
    if (section.text("expert_dtype") or expert_dtype) in ("fp4", "mxfp4"):
        experts = MXFP4_BITS
    _note_cache_scheme(section, fields.notes)
    return Precision(bits, matrices, experts)


def _packed(section: Fields, plain: Fraction) -> Precision:
    """A folder that Quire wrote states the bits of each sort of weights, and which share of them are floats."""

    def of(sort: str) -> Fraction | None:
        bits, floats = _number(section, "bits", sort), _number(section, "floats", sort)
        return None if bits is None else bits + (floats or 0) * plain

    return Precision(plain, of("matrices") or plain, of("experts") or plain, embedding=of("embedding"), head=of("head"))


def _number(section: Fields, name: str, sort: str) -> Fraction | None:
    inner = section.section(name)
    value = None if inner is None else inner.raw(sort)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= MOST_BITS:
        raise ModelError(f"quantization_config.{name}.{sort} is {shown(value)}: expected is a number up to {MOST_BITS}")
    return Fraction(value)


def _dtype_bits(fields: Fields) -> Fraction:
    text = fields.text("dtype", "torch_dtype")
    if text is None:
        fields.notes.append("dtype absent: weights counted in bf16")
        return Fraction(16)
    try:
        return Fraction(8 * parse_dtype(text).bytes)
    except InputError as error:
        raise ModelError(str(error)) from None


Bits = tuple[Fraction | None, Fraction]
"""Bits of matrices (None: they stay at the dtype) and of routed experts."""


def _quantised_bits(section: Fields, bits: Fraction, notes: list[str]) -> tuple[Fraction, Fraction]:
    method = (section.text("quant_method") or section.text("quant_algo") or "").lower()
    found = _FIXED.get(method)
    if found is None:
        found = _METHODS.get(method, _unnamed)(section)
    if found is None:
        stated = f"quantization_config.quant_method {method!r} states no bits"
        notes.append(f"{stated}: weights counted at {int(bits)} bits each, an upper bound")
        return bits, bits
    matrices, experts = found
    return (bits if matrices is None else matrices), experts


def _blocks(section: Fields) -> Bits:
    block = section.integers("weight_block_size", minimum=1)
    eight = Fraction(8) + (Fraction(32, math.prod(block)) if block else 0)
    return eight, eight


def _modelopt(section: Fields) -> Bits | None:
    nested = section.section("quantization") or section
    algorithm = (nested.text("quant_algo") or "").upper()
    known = {"NVFP4": NVFP4_BITS, "FP8": Fraction(8), "W4A16_AWQ": Fraction(33, 8), "W4A8_AWQ": Fraction(33, 8)}
    found = known.get(algorithm)
    return None if found is None else (found, found)


def _grouped(section: Fields) -> Bits | None:
    """AWQ and GPTQ: `bits` a weight, a 16-bit scale and a zero point for each group."""
    width = section.optional_integer("bits", "w_bit")
    if width is None:
        return None
    group = section.raw("group_size", "q_group_size")
    spread = Fraction(16 + width, group) if isinstance(group, int) and group > 0 else Fraction(0)
    return Fraction(width) + spread, Fraction(width) + spread


def _unnamed(section: Fields) -> Bits | None:
    """MLX states bits and group size without naming a method."""
    return None if section.raw("quant_method", "quant_algo") is not None else _grouped(section)


def _compressed_tensors(section: Fields) -> Bits | None:
    groups = section.section("config_groups")
    if groups is None:
        return None
    for name in groups.config:
        group = groups.section(name)
        weights = None if group is None else group.section("weights")
        width = None if weights is None else weights.optional_integer("num_bits")
        if weights is not None and width is not None:
            size = weights.raw("group_size")
            stored = Fraction(width) + (Fraction(16, size) if isinstance(size, int) and size > 0 else 0)
            return (None if _spares_attention(section) else stored), stored
    return None


def _spares_attention(section: Fields) -> bool:
    """Checkpoints that quantise routed experts alone list attention among the ignored modules."""
    return any("self_attn" in str(item) for item in section.items("ignore") or ())


def _bitsandbytes(section: Fields) -> Bits | None:
    if section.flag("load_in_4bit"):
        return NVFP4_BITS, NVFP4_BITS
    return (Fraction(8), Fraction(8)) if section.flag("load_in_8bit") else None


def _note_cache_scheme(section: Fields, notes: list[str]) -> None:
    scheme = section.section("kv_cache_scheme")
    if scheme is not None:
        width = scheme.raw("num_bits")
        notes.append(f"the checkpoint was calibrated for a {width}-bit KV cache: the KV dtype stays your choice")


_FIXED: dict[str, Bits] = {
    "mxfp4": (None, MXFP4_BITS),
    "nvfp4": (NVFP4_BITS, NVFP4_BITS),
    "modelopt_fp4": (NVFP4_BITS, NVFP4_BITS),
}
_METHODS: dict[str, Callable[[Fields], Bits | None]] = {
    "fp8": _blocks, "fbgemm_fp8": _blocks, "finegrained_fp8": _blocks, "modelopt": _modelopt, "awq": _grouped,
    "gptq": _grouped, "auto-round": _grouped, "compressed-tensors": _compressed_tensors, "bitsandbytes": _bitsandbytes,
}  # fmt: skip
