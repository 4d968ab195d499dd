"""How many bits each sort of parameter takes in memory.

Weights of quantised checkpoints stay packed (`docs/quantised.md`). Of a checkpoint that is here, the files say what
is packed (`stored_bits.py`); of another, its configuration, which is as exact for models of a usual size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from quire.core.dtypes import parse_dtype
from quire.core.errors import InputError, ModelError
from quire.core.units import ceil_div
from quire.models.blueprint import Weights
from quire.models.fields import Fields
from quire.models.quantisation import Format, format_of, groups_of, refuse_twice
from quire.models.stored_bits import STORED
from quire.models.weight_layout import OUTPUTS_AT_A_TIME, WeightFormat, bits_of_8, plane_group
from quire.native.library import native

MXFP4_BITS = Fraction(17, 4)
"""4 bits and one 8-bit scale for each 32 numbers."""
NVFP4_BITS = Fraction(9, 2)
"""4 bits and one 8-bit scale for each 16 numbers."""


@dataclass(frozen=True, slots=True)
class Precision:
    plain: Fraction
    matrices: Fraction
    experts: Fraction
    table: Fraction
    """Of the embedding."""
    head: Fraction
    has_panels: bool = False
    """A tied head is kept a second time (`models/weight_layout.py`)."""
    tied_head: Fraction = Fraction(0)
    """Of a head that is kept a second time on planes."""

    def bytes_of(self, parameters: int) -> int:
        """Parameters that no quantisation touches."""
        return math.ceil(parameters * self.plain / 8)

    def divided(self, weights: Weights) -> int:
        bits = weights.matrices * self.matrices + weights.experts * self.experts + weights.plain * self.plain
        return math.ceil(bits / 8)

    def replicated(self, weights: Weights) -> int:
        return math.ceil((weights.latent * self.matrices + weights.replicated * self.plain) / 8)


def read_precision(fields: Fields, held: WeightFormat) -> Precision:
    """Refuses formats that are not read, as the loader does. `held`: as what weights are quantised at load, and where
    packed ones lie on planes."""
    bits = _dtype_bits(fields)
    sections = [fields.section(name) for name in ("quantization_config", "compression_config", "quantization")]
    section = next((section for section in sections if section is not None), None)
    expert_dtype = fields.text("expert_dtype")
    if section is None:
        return Precision(bits, bits, bits, bits, bits) if held.packed is None else _at_load(fields, held, bits)
    if held.packed is not None:
        refuse_twice(section.config, held.packed)
    _note_cache_scheme(section, fields.notes)
    sort = format_of(section.config)
    if section.raw(STORED) is not None:
        return _stored(section, bits, held.has_planes)
    matrices, experts = _quantised_bits(sort, section, bits, fields.notes)
    if (section.text("expert_dtype") or expert_dtype) in ("fp4", "mxfp4"):
        experts = MXFP4_BITS
    return Precision(bits, matrices, experts, bits, bits)


def _at_load(fields: Fields, held: WeightFormat, plain: Fraction) -> Precision:
    """As `worker/model/quantise.py` writes them; a head on planes has its outputs filled up."""
    eight = Fraction(17, 2)
    has_tiles = held.has_planes and native() is not None
    if held.packed == "fp8":
        inputs = fields.optional_integer("hidden_size", "n_embd", "d_model") or 4096
        rows = Fraction(8) + Fraction(32, (plane_group(inputs, 0) if has_tiles else None) or inputs)
        return Precision(plain, rows, rows, plain, plain)
    on_planes = Fraction(bits_of_8()) if held.has_planes else eight
    matrices = Fraction(5) if held.packed == "int4" else on_planes
    experts = Fraction(5) if held.packed == "int4" else on_planes if has_tiles else eight
    outputs = fields.optional_integer("vocab_size") or OUTPUTS_AT_A_TIME
    head = on_planes * ceil_div(outputs, OUTPUTS_AT_A_TIME) * OUTPUTS_AT_A_TIME / outputs if held.has_planes else eight
    return Precision(plain, matrices, experts, eight, head, tied_head=head if held.has_planes else Fraction(0))


def _stored(section: Fields, plain: Fraction, has_planes: bool) -> Precision:
    """On average of each sort, with plain parameters at the dtype. An embedding is looked up in its packed form, and a
    head that is tied to it has planes of its own."""
    found = section.section(STORED)
    assert found is not None
    matrices, experts, head = (_average(found, sort, plain, has_planes) for sort in ("matrices", "experts", "head"))
    table, copied = (_average(found, "table", plain, on_planes) for on_planes in (False, True))
    is_copied = has_planes and table != plain
    return Precision(plain, matrices, experts, table, head, tied_head=copied if is_copied else Fraction(0))


def _average(found: Fields, sort: str, plain: Fraction, on_planes: bool) -> Fraction:
    values = found.integers(sort) or [0, 0, 1, 0]
    if len(values) != 4:
        raise found.wrong(sort, values, "it must be four numbers")
    packed, count, others, planes = values
    return ((planes if on_planes else packed) + others * plain) / (count + others) if count + others else plain


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


def _quantised_bits(sort: Format, section: Fields, bits: Fraction, notes: list[str]) -> tuple[Fraction, Fraction]:
    found = _COUNTS[sort](section)
    if found is None:
        stated = f"quantization_config.quant_method {sort.value!r} states no bits"
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
    algorithm = (nested.text("quant_algo") or section.text("quant_method") or "").upper()
    found = NVFP4_BITS if "FP4" in algorithm else Fraction(8) if algorithm.startswith("FP8") else None
    return None if found is None else (found, found)


def _grouped(section: Fields) -> Bits | None:
    """AWQ and GPTQ: a 16-bit scale for each group, and a minimum in fp32 unless codes are symmetric."""
    width = section.optional_integer("bits", "w_bit")
    if width is None:
        return None
    group = section.raw("group_size", "q_group_size")
    is_symmetric = section.raw("sym") is True or section.raw("zero_point") is False
    each = 16 if is_symmetric else 48
    stored = Fraction(width) + (Fraction(each, group) if isinstance(group, int) and group > 0 else 0)
    return stored, stored


def _compressed_tensors(section: Fields) -> Bits | None:
    for group in groups_of(section.config):
        weights = group.get("weights")
        width = weights.get("num_bits") if isinstance(weights, Mapping) else None
        if isinstance(weights, Mapping) and isinstance(width, int):
            size, sort = weights.get("group_size"), weights.get("type")
            each = 8 if sort == "float" else 16 if weights.get("symmetric", True) else 48
            stored = Fraction(width) + (Fraction(each, size) if isinstance(size, int) and size > 0 else 0)
            return (None if _spares_attention(section) else stored), stored
    return None


def _spares_attention(section: Fields) -> bool:
    """Checkpoints that quantise routed experts alone list attention among the ignored modules."""
    return any("self_attn" in str(item) for item in section.items("ignore") or ())


def _note_cache_scheme(section: Fields, notes: list[str]) -> None:
    scheme = section.raw("kv_cache_scheme")
    if scheme is None:
        return
    width = scheme.get("num_bits", 8) if isinstance(scheme, Mapping) else 8  # AutoFP8 has a word: static
    use = ", and --kv-dtype fp8 takes the scales that its files have" if width == 8 else ""
    notes.append(f"the checkpoint was calibrated for a {width}-bit KV cache: the KV dtype stays your choice{use}")


_COUNTS: dict[Format, Callable[[Fields], Bits | None]] = {
    Format.QUIRE: lambda _section: None, Format.FP8: _blocks, Format.MODELOPT: _modelopt, Format.AWQ: _grouped,
    Format.GPTQ: _grouped, Format.COMPRESSED_TENSORS: _compressed_tensors,
    Format.MXFP4: lambda _section: (None, MXFP4_BITS),
}  # fmt: skip
