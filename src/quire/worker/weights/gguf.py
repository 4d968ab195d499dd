"""A GGUF file: configuration, and parameters by the names transformers uses. Needs no torch.

    files ──▶ headers ──▶ facts ──▶ config.json          (gguf_parts, gguf_header, gguf_facts, gguf_config, gguf_ropes)
                              └──▶ parameters            (gguf_names)
    data ──▶ blocks ──▶ codes, scales, minimums; floats as they are          (gguf_blocks)

Quantised weights of linear layers, embeddings and experts stay quantised, in the form of `packed.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from quire.core.errors import ModelError
from quire.models.stored_bits import STORED
from quire.models.weight_layout import plane_bits
from quire.native.library import native
from quire.worker.weights.gguf_blocks import FLOATS, PACKINGS, Array, Packing, Stored, common, pack
from quire.worker.weights.gguf_config import EMBEDDING, read_config
from quire.worker.weights.gguf_facts import Facts, shown
from quire.worker.weights.gguf_names import Parameter, parameters_of
from quire.worker.weights.gguf_parts import Parts, open_parts

_TORCH = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_NUMPY = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class GgufFile:
    """An open file, or several that are parts of one model."""

    parts: Parts
    facts: Facts

    @property
    def path(self) -> Path:
        return self.parts.path

    @property
    def fields(self) -> Mapping[str, Any]:
        """The metadata: `llama.block_count`, `tokenizer.ggml.tokens` and so on."""
        return self.facts.fields

    def parameters(self) -> Iterator[tuple[str, str, Shape]]:
        """Names in a folder of Quire's, types and shapes; no values are read."""
        for parameter in parameters_of(self.facts):
            for end, (dtype, shape) in self._form(parameter).items():
                yield f"{parameter.name}{end}", dtype, shape

    def read(self) -> Iterator[tuple[str, Array]]:
        """The same, with their values: one parameter at a time, in the file's order."""
        for parameter in parameters_of(self.facts):
            for end, stored in self._values(parameter).items():
                yield f"{parameter.name}{end}", stored.values

    def config(self) -> dict[str, Any]:
        return config_of(self.facts)

    def _form(self, parameter: Parameter) -> dict[str, tuple[str, Shape]]:
        packing, shape = _packing(self.facts, parameter), _shape(self.facts, parameter)
        if packing is not None:
            return {f".{name}": part for name, part in packing.parts(shape).items()}
        return {"": (_float(self.facts, parameter), _as_in_transformers(parameter, shape))}

    def _values(self, parameter: Parameter) -> dict[str, Stored]:
        packing = _packing(self.facts, parameter)
        found = [self._source(name, packing) for name in parameter.sources]
        if packing is None:
            found = [{"": _widened(one[""], _float(self.facts, parameter))} for one in found]
        joined = {part: _joined([one[part] for one in found], parameter) for part in found[0]}
        self._require_finite(parameter, joined)
        if packing is not None:
            return {f".{name}": stored for name, stored in joined.items()}
        values = joined[""].values - np.float32(parameter.minus) if parameter.minus else joined[""].values
        if parameter.is_transposed:
            values = values.swapaxes(-1, -2)
        shape = _as_in_transformers(parameter, _shape(self.facts, parameter))
        return {"": Stored(np.ascontiguousarray(values.reshape(shape)), joined[""].dtype)}

    def _source(self, name: str, packing: Packing | None) -> dict[str, Stored]:
        tensor, data = self.facts.tensors[name], self.parts.data(name)
        sort = GGMLQuantizationType(tensor.sort)
        if packing is not None:
            return pack(data, sort, tensor.shape, packing)
        if sort in FLOATS:
            return {"": Stored(data.view(_NUMPY[FLOATS[sort]]).reshape(tensor.shape), FLOATS[sort])}
        rows = data.reshape(math.prod(tensor.shape[:-1]), -1)
        return {"": Stored(dequantize(rows, sort).reshape(tensor.shape), "F32")}

    def _require_finite(self, parameter: Parameter, parts: Mapping[str, Stored]) -> None:
        """The scales of a damaged file are seldom all numbers."""
        for name, stored in parts.items():
            values = stored.values
            if stored.dtype == "BF16":
                is_whole = bool(((values & 0x7F80) != 0x7F80).all())
            else:
                is_whole = values.dtype.kind != "f" or bool(np.isfinite(values).all())
            if not is_whole:
                what = name or "values"
                raise ModelError(
                    f"{self.path.name}: {what} of tensor {shown(parameter.sources[0])} are not all finite: "
                    "the file is damaged, download it again"
                )


def _shape(facts: Facts, parameter: Parameter) -> Shape:
    """As (…, out, in)."""
    *rest, last = facts.shape(parameter.sources[0])
    rows = facts.shape(parameter.sources[0])[0]
    if parameter.heads and rows % (2 * parameter.heads):
        where = f"{facts.name} has {parameter.sources[0]} with {rows} rows"
        raise ModelError(f"{where}, which are not pairs of {parameter.heads} heads: is the file whole?")
    if len(parameter.sources) == 1:
        return (*rest, last)
    shapes = {facts.shape(name) for name in parameter.sources}
    if len(shapes) > 1:
        raise ModelError(f"{facts.name} has {' and '.join(parameter.sources)} of different shapes: is the file whole?")
    axis = -1 if parameter.name.endswith("_bias") else -2
    whole = [*rest, last]
    whole[axis] *= len(parameter.sources)
    return tuple(whole)


def _as_in_transformers(parameter: Parameter, shape: Shape) -> Shape:
    if parameter.name.endswith("shared_expert_gate.weight") and len(shape) == 1:
        return (1, *shape)
    return (*shape[:-2], shape[-1], shape[-2]) if parameter.is_transposed else shape


def _packing(facts: Facts, parameter: Parameter) -> Packing | None:
    """None: it is written as floats."""
    sorts = [GGMLQuantizationType(facts.tensors[name].sort) for name in parameter.sources]
    if not parameter.may_pack or any(sort not in PACKINGS for sort in sorts):
        return None
    try:
        return common([PACKINGS[sort] for sort in sorts])
    except ValueError as error:
        raise ModelError(f"{facts.name} has {' and '.join(parameter.sources)} as {error}: give safetensors") from None


def _float(facts: Facts, parameter: Parameter) -> str:
    """The type of a parameter that is not packed."""
    sorts = {GGMLQuantizationType(facts.tensors[name].sort) for name in parameter.sources}
    if len(sorts) > 1 or parameter.minus or not sorts <= FLOATS.keys():
        return "F32"
    return FLOATS[sorts.pop()]


def _widened(stored: Stored, dtype: str) -> Stored:
    if stored.dtype == dtype:
        return stored
    if stored.dtype == "BF16":
        return Stored((stored.values.astype(np.uint32) << 16).view(np.float32), "F32")
    return Stored(stored.values.astype(np.float32), "F32")


def _joined(parts: Sequence[Stored], parameter: Parameter) -> Stored:
    """Rows of all sources together, in the order that transformers has."""
    values = parts[0].values
    if len(parts) > 1:
        axis = -1 if parameter.name.endswith("_bias") else -2
        arrays = [part.values for part in parts]
        place = values.ndim + axis
        joined = np.stack(arrays, place + 1) if parameter.is_alternating else np.concatenate(arrays, place)
        shape = list(values.shape)
        shape[place] *= len(parts)
        values = joined.reshape(shape)
    if parameter.heads:
        values = join_halves(values, parameter.heads)
    return Stored(values, parts[0].dtype)


def join_halves(values: Array, heads: int) -> Array:
    half = values.shape[0] // heads // 2
    return values.reshape(heads, half, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def open_gguf(path: Path) -> GgufFile:
    """Reads the headers; refuses by name what would be read wrongly."""
    parts = open_parts(path, with_lists=True)
    opened = GgufFile(parts, parts.facts())
    opened.config()
    for _ in opened.parameters():
        pass
    return opened


def config_of(facts: Facts) -> dict[str, Any]:
    """config.json, with what the weights are stored as, for plans (`models/stored_bits.py`)."""
    config, sizes = read_config(facts), _sizes(facts)
    sort = GGMLQuantizationType(facts.tensors[EMBEDDING].sort)
    config["dtype"] = _TORCH[FLOATS[sort]] if sort in FLOATS else "bfloat16"
    if any(packed for _, packed, *_ in sizes.values()):
        config["quantization_config"] = {"quant_method": "quire", STORED: sizes}
    return config


def _sizes(facts: Facts) -> dict[str, list[int]]:
    """By sort of weights, as `models/stored_bits.py` measures them."""
    found: dict[str, list[int]] = {}
    for parameter in parameters_of(facts):
        if parameter.may_pack:
            packing, shape = _packing(facts, parameter), _shape(facts, parameter)
            own = [0, 0, math.prod(shape), 0] if packing is None else _packed_sizes(packing, parameter.sort, shape)
            before = found.get(parameter.sort, [0, 0, 0, 0])
            found[parameter.sort] = [one + other for one, other in zip(before, own, strict=True)]
    return found


def _packed_sizes(packing: Packing, sort: str, shape: tuple[int, ...]) -> list[int]:
    count = math.prod(shape)
    bits, width = int(count * packing.bits), {"int4": 4, "int8": 8, "fp4": 4}.get(packing.codes)
    needs_tiles = sort == "experts" or packing.codes == "fp4"
    is_reference = width is None or (needs_tiles and native() is None)
    planes = None if is_reference or width is None else plane_bits(width, shape[-2], shape[-1], packing.columns)
    return [bits, count, 0, bits if planes is None else planes * math.prod(shape[:-2])]
