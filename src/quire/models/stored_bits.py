"""How many bits quantised weights take in memory, from the headers of their files. Needs no torch.

A configuration names the format; which layers it spares, and how large its scales are, only the files say. So plans
count what the files have, here or on a hub, and as what the loader holds it (`worker/weights/formats`):

    sort        parameters that are counted together: matrices, experts, head, table (the embedding)
    packed      bits of all packed parameters, scales included, and how many parameters they are
    plain       parameters that are not packed
    on planes   bits of packed parameters as a CPU holds them (`weight_layout.py`)
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from quire.core.errors import ModelError
from quire.models.quantisation import (
    FP8_BLOCK,
    Format,
    Section,
    block_of,
    format_of,
    groups_of,
    section_in,
    text_of,
)
from quire.models.weight_layout import plane_bits
from quire.native.library import native

STORED = "stored_bits"
"""The field of `quantization_config` that has them."""
BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E8M0": 1}
CODES = {".int4": 2, ".sint4": 2, ".fp4": 2, ".int8": 1, ".fp8": 1, "_blocks": 2}
"""Endings of codes, and how many lie in a byte."""
SIDES = (".scales", ".minimums", ".factors", ".order", "_scale_inv", "_scale", "_scales")
NO_MATRICES = re.compile(r"norm|conv|kv_b_proj|\bgate\.weight|router|bias|\bmlp\.gate\b|shared_expert_gate")
"""Names of parameters of several dimensions that plans count apart, or that are not parameters."""
LARGEST_HEADER = 100 << 20
MOST_DIMENSIONS, LARGEST_SIZE = 16, 1 << 62


@dataclass(frozen=True, slots=True)
class Tensor:
    dtype: str
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.count * BYTES.get(self.dtype, 1)


def with_stored_bits(folder: Path, config: Mapping[str, object]) -> dict[str, object]:
    """The configuration, with what the folder's files say about its quantised weights."""
    section = section_in(folder)
    files = sorted(folder.glob("*.safetensors"))
    if section is None or STORED in section or not files:
        return dict(config)
    return add_stored_bits(config, section, {k: v for file in files for k, v in read_header(file).items()})


def add_stored_bits(config: Mapping[str, object], section: Section, tensors: Mapping[str, Tensor]) -> dict[str, object]:
    layers = text_of(config).get("num_hidden_layers")
    found = measure(tensors, section, layers if isinstance(layers, int) else None)
    text, own = config.get("text_config"), {"quantization_config": {**section, STORED: found}}
    return {**config, **own, **({"text_config": {**text, **own}} if isinstance(text, Mapping) else {})}


def read_header(file: Path) -> dict[str, Tensor]:
    try:
        with file.open("rb") as source:
            size = source.read(8)
            return parse_header(size + source.read(min(header_bytes(size), LARGEST_HEADER)), str(file))
    except OSError as error:
        raise _unreadable(str(file), error) from None


def header_bytes(beginning: bytes) -> int:
    """Of a file of safetensors, after the first eight."""
    return int.from_bytes(beginning[:8], "little")


def parse_header(beginning: bytes, name: str) -> dict[str, Tensor]:
    """Of a file of safetensors, from its first bytes."""
    try:
        header = beginning[8 : 8 + header_bytes(beginning)]
        if len(header) < header_bytes(beginning):
            raise ValueError(f"its header of {header_bytes(beginning):,} bytes is cut off")
        return {
            name: Tensor(str(entry["dtype"]), _shape(entry["shape"]))
            for name, entry in json.loads(header).items()
            if name != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _unreadable(name, error) from None


def _shape(sizes: list[object]) -> tuple[int, ...]:
    """Raises ValueError for what no tensor can have."""
    found = tuple(size for size in sizes if type(size) is int and 0 <= size < LARGEST_SIZE)
    if len(found) != len(sizes) or len(sizes) > MOST_DIMENSIONS:
        raise ValueError(f"a shape of {len(sizes)} sizes is none: they are whole, and at most {MOST_DIMENSIONS}")
    return found


def _unreadable(name: str, error: Exception) -> ModelError:
    return ModelError(f"{name} cannot be read as safetensors: {type(error).__name__}: {error}")


def measure(tensors: Mapping[str, Tensor], section: Section, layers: int | None = None) -> dict[str, list[int]]:
    """By sort: bits of packed parameters, how many they are, how many others there are, and bits on planes."""
    found: dict[str, list[int]] = {}
    sort, claimed = format_of(section), set[str]()
    for name, packed in _packed(tensors, sort, section):
        claimed.add(name)
        kind = _sort(name, layers)
        own = found.setdefault(kind, [0, 0, 0, 0])
        own[0] += packed.bits
        own[1] += packed.count
        is_reference = packed.on_planes is None or (kind == "experts" and (native() is None or packed.has_order))
        own[3] += packed.bits if is_reference or packed.on_planes is None else packed.on_planes
    for name, tensor in tensors.items():
        if name not in claimed and len(tensor.shape) >= 2 and tensor.dtype in ("F32", "F16", "BF16"):
            found.setdefault(_sort(name, layers) if _is_weight(name) else "", [0, 0, 0, 0])[2] += tensor.count
    found.pop("", None)
    return found


def _is_weight(name: str) -> bool:
    return name.endswith(("weight", "_proj")) and not name.endswith(SIDES)


def _sort(name: str, layers: int | None) -> str:
    """Empty: counted elsewhere, or not loaded."""
    layer = re.search(r"\blayers\.(\d+)\.", name)
    if layer is None:
        return "head" if "lm_head" in name else "table" if "embed_tokens" in name else ""
    if NO_MATRICES.search(name) or (layers is not None and int(layer[1]) >= layers):
        return ""
    return "experts" if ".experts." in name else "matrices"


@dataclass(frozen=True, slots=True)
class _Parameter:
    count: int
    bits: int
    on_planes: int | None = None
    """None: planes do not hold it."""
    has_order: bool = False


def _packed(tensors: Mapping[str, Tensor], sort: Format, section: Section) -> Iterator[tuple[str, _Parameter]]:
    find = _words if sort in (Format.AWQ, Format.GPTQ) else _codes
    for name, tensor in tensors.items():
        found = find(tensors, name, tensor, section)
        if found is not None:
            yield found


def _words(tensors: Mapping[str, Tensor], name: str, tensor: Tensor, section: Section) -> tuple[str, _Parameter] | None:
    """AWQ and GPTQ. Zero points become minimums in fp32 where they are not all in the middle; act-order an order."""
    own = name.removesuffix(".qweight")
    if own == name:
        return None
    groups, scales = tensors.get(f"{own}.g_idx"), tensors.get(f"{own}.scales")
    bits = 4 if groups is None else 32 * tensor.shape[0] // groups.count
    is_symmetric = section.get("sym", not section.get("zero_point", True)) is True
    sides = 0 if scales is None else scales.bytes + (0 if is_symmetric else 4 * scales.count)
    sides += 4 * groups.count if groups is not None and section.get("desc_act") is True else 0
    order = 32 * groups.count if groups is not None and section.get("desc_act") is True else 0
    count = tensor.count * 32 // bits
    planes = None if scales is None else _planes(bits, count, scales.shape[-1], scales.shape[0], order)
    return f"{own}.weight", _Parameter(count, 8 * (tensor.bytes + sides), planes, order > 0)


def _planes(bits: int, count: int, outputs: int, groups: int, order: int) -> int | None:
    """Bits of a weight on planes; `groups`: scales for each output."""
    inputs = count // outputs
    found = None if inputs % groups else plane_bits(bits, outputs, inputs, inputs // groups)
    return None if found is None else found + order


def _codes(tensors: Mapping[str, Tensor], name: str, tensor: Tensor, section: Section) -> tuple[str, _Parameter] | None:
    """The other formats: codes, and what lies next to them under the same name."""
    own, each = _own(tensors, name, tensor, section)
    if not each:
        return None
    outputs = math.prod(tensor.shape[:-2] if name.endswith("_blocks") else tensor.shape[:-1])
    sides = 0
    for side in SIDES:
        found = tensors.get(own + side)
        if found is not None:
            is_one = found.count == 1 or found.shape == tensor.shape[:-2]
            sides += (outputs if is_one else found.count) * BYTES.get(found.dtype, 1)
            sides += 4 * (outputs if is_one else found.count) if f"{own}_zero_point" in tensors else 0
    if f"{own}_scale_2" in tensors or f"{own}_global_scale" in tensors:
        sides += 4 * outputs
    count = int(tensor.count * each)
    order = 4 * count // outputs if f"{own}_g_idx" in tensors else 0
    planes = _planes_of_codes(tensors, own, tensor, section, (outputs, count // outputs))
    planes = None if planes is None else planes + 8 * order
    return own, _Parameter(count, 8 * (tensor.bytes + sides + order), planes, order > 0)


def _planes_of_codes(
    tensors: Mapping[str, Tensor], own: str, tensor: Tensor, section: Section, shape: tuple[int, int]
) -> int | None:
    """Bits on planes; floats lie there only where the library in C is."""
    outputs, inputs = shape
    bits, groups = 8 * tensor.bytes // (outputs * inputs), _groups(tensors, own)
    is_whole = tensor.dtype in ("I8", "I32") or f"{own}.int4" in tensors or f"{own}.sint4" in tensors
    if is_whole:
        return _planes(bits, outputs * inputs, outputs, groups, 0) if groups else None
    return (
        None if native() is None else plane_bits(bits, outputs, inputs, _float_columns(tensors, own, tensor, section))
    )


def _float_columns(tensors: Mapping[str, Tensor], own: str, tensor: Tensor, section: Section) -> int:
    """How many 4-bit or 8-bit floats share a scale; 0: all inputs of an output."""
    found = [tensors[own + side] for side in SIDES if own + side in tensors]
    if not found or tensor.dtype != "F8_E4M3":
        return 16 if found and found[0].dtype == "F8_E4M3" else 32
    outputs, inputs = tensor.shape[-2:]
    block, scales = block_of(section), found[0]
    if scales.count in (1, math.prod(tensor.shape[:-2]), math.prod(tensor.shape[:-1])):
        return 0
    is_grouped = block is None and scales.shape[-2] == outputs and inputs % scales.shape[-1] == 0
    return inputs // scales.shape[-1] if is_grouped else (block or FP8_BLOCK)[1]


def _groups(tensors: Mapping[str, Tensor], own: str) -> int:
    """Scales for each output; 0: there are none."""
    scales = next((tensors[own + side] for side in (".scales", "_scale") if own + side in tensors), None)
    return 0 if scales is None else scales.shape[-1] if len(scales.shape) > 1 else 1


def _own(tensors: Mapping[str, Tensor], name: str, tensor: Tensor, section: Section) -> tuple[str, int]:
    """The parameter that codes belong to, and how many there are for each number of the tensor; 0: they are none."""
    for ending, each in CODES.items():
        if name.endswith(ending):
            return name.removesuffix(ending), each
    if name.endswith("_packed"):
        return name.removesuffix("_packed"), 2 if tensor.dtype == "U8" else 32 // _bits(section)
    is_side = name.endswith((*SIDES, "_zero_point", "_g_idx", "_shape"))
    if is_side or not any(f"{name}{side}" in tensors for side in ("_scale", "_scale_inv")):
        return name, 0
    return name, {"F8_E4M3": 1, "I8": 1, "U8": 2}.get(tensor.dtype, 0)


def _bits(section: Section) -> int:
    weights = [group.get("weights") for group in groups_of(section)]
    found = [own.get("num_bits") for own in weights if isinstance(own, Mapping)]
    return found[0] if found and found[0] in (4, 8) else 4
