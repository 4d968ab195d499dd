"""The files of a GGUF model, one or several, and whether all that their headers name is there."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType

from quire.core.errors import ModelError
from quire.worker.weights.gguf_blocks import FLOATS, PACKINGS, tensor_bytes
from quire.worker.weights.gguf_facts import Facts, shown
from quire.worker.weights.gguf_header import GgufHeader, GgufTensor, read_header

PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
_COUNT = "split.count"
_NAMES = {int(sort): sort.name for sort in GGMLQuantizationType}
_READ = {int(sort) for sort in (*FLOATS, *PACKINGS)}


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Headers that were checked."""

    path: Path
    """The first file, which has the metadata."""
    headers: Mapping[Path, GgufHeader]
    is_whole: bool
    """Otherwise the files are only beginnings, enough for a plan."""

    def facts(self) -> Facts:
        fields = self.headers[self.path].fields
        expected, found = fields.get(_COUNT) or 1, len(self.headers)
        if expected != found:
            raise ModelError(
                f"{self.path.name} is one of {expected} parts, {found} is named like one: keep their names, as in "
                f"-00001-of-{int(expected):05}.gguf"
            )
        tensors = {name: tensor for header in self.headers.values() for name, tensor in header.tensors.items()}
        return Facts(self.path.name, fields, tensors, self.floats)

    def floats(self, name: str) -> list[float]:
        """The numbers of a small tensor. Of beginnings, ones: a plan needs no rotary frequencies."""
        tensor, sort = next((own[name] for own in self._tensors() if name in own), None), GGMLQuantizationType.F32
        if tensor is None or tensor.sort != sort:
            raise ModelError(f"{self.path.name} has no tensor {name} of 32-bit floats: is the file whole?")
        if not self.is_whole:
            return [1.0] * math.prod(tensor.shape)
        return [float(value) for value in self.data(name).view(np.float32)]

    def data(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor, mapped into memory."""
        file, tensor = next((file, own.tensors[name]) for file, own in self.headers.items() if name in own.tensors)
        size = tensor_bytes(GGMLQuantizationType(tensor.sort), tensor.shape)
        return np.memmap(file, np.uint8, "r", tensor.offset, (size,))

    def _tensors(self) -> list[Mapping[str, GgufTensor]]:
        return [header.tensors for header in self.headers.values()]


def open_parts(path: Path, with_lists: bool = False, is_whole: bool = True) -> Parts:
    """Reads the headers; refuses tensors of types that are not read, and those that are not all there."""
    headers = {file: read_header(file, with_lists=with_lists and file == path) for file in parts_of(path)}
    for file, header in headers.items():
        _check(file, header, is_whole)
    return Parts(path, headers, is_whole)


def parts_of(path: Path) -> tuple[Path, ...]:
    """All files of a model, the first one first."""
    match = PART.search(path.name)
    if match is None:
        return (path,)
    number, count = int(match[1]), int(match[2])
    names = [f"{path.name[: match.start()]}-{place:05}-of-{count:05}{path.suffix}" for place in range(1, count + 1)]
    if number != 1 or not count:
        first = f"{path.name[: match.start()]}-00001-of-{count:05}{path.suffix}"
        raise ModelError(f"{path.name} is part {number} of {count}: give the first one, {first}")
    files = (path, *(path.with_name(name) for name in names[1:]))
    if missing := [file.name for file in files if not file.is_file()]:
        raise ModelError(f"{path} lacks {len(missing)} of its {count} parts, {missing[0]} first: download them all")
    return files


def _check(path: Path, header: GgufHeader, is_whole: bool) -> None:
    stored = {tensor.sort for tensor in header.tensors.values()}
    if unread := sorted(_NAMES.get(sort, f"type {sort}") for sort in stored - _READ):
        raise ModelError(
            f"{path.name} has tensors quantised as {', '.join(unread[:4])}, which is not read: give safetensors"
        )
    size = path.stat().st_size
    for name, tensor in header.tensors.items():
        problem = _problem(tensor)
        if problem:
            raise ModelError(f"{path} cannot be read as GGUF: tensor {shown(name)} of shape {tensor.shape} {problem}")
        end = tensor.offset + tensor_bytes(GGMLQuantizationType(tensor.sort), tensor.shape)
        if is_whole and end > size:
            where = f"{path} is cut off: tensor {shown(name)} ends at byte {end:,}"
            raise ModelError(f"{where}, the file has {size:,}: download it again")


def _problem(tensor: GgufTensor) -> str:
    if not tensor.shape or 0 in tensor.shape:
        return "has no numbers"
    try:
        tensor_bytes(GGMLQuantizationType(tensor.sort), tensor.shape)
    except ValueError as error:
        return f"has {error}"
    return ""
