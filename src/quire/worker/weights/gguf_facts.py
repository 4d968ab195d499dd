"""What a GGUF file states about its model, with the refusal of what is missing or odd."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quire.core.errors import ModelError
from quire.worker.weights.gguf_header import GgufTensor


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """The metadata of a file of that name, and its tensors."""

    name: str
    fields: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]
    values: Callable[[str], Sequence[float]]
    """The numbers of a small tensor."""

    @property
    def architecture(self) -> str:
        return str(self.fields.get("general.architecture"))

    def raw(self, key: str) -> Any:
        """None: the file does not state it."""
        return self.fields.get(f"{self.architecture}.{key}")

    def number(self, key: str, absent: int | None = None) -> int:
        """Of files with a number for each layer: the one that all have."""
        value = self.raw(key)
        if isinstance(value, list) and value:
            if len(set(value)) > 1:
                raise self.wrong(key, f"{min(value)} to {max(value)}, different for its layers")
            value = value[0]
        if value is None and absent is not None:
            return absent
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ModelError(f"{self.name} has no number {self.architecture}.{key}: is the file whole?")
        return value

    def real(self, key: str, absent: float | None = None) -> float:
        value = self.raw(key)
        if value is None and absent is not None:
            return absent
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ModelError(f"{self.name} has no number {self.architecture}.{key}: is the file whole?")
        return short(value)

    def wrong(self, key: str, stated: object) -> ModelError:
        return ModelError(f"{self.name} has {self.architecture}.{key} {stated}, which is not read: give safetensors")

    def has(self, tensor: str) -> bool:
        return tensor in self.tensors

    def shape(self, tensor: str) -> tuple[int, ...]:
        if tensor not in self.tensors:
            raise ModelError(f"{self.name} has no tensor {tensor}: is the file whole?")
        return self.tensors[tensor].shape


def short(value: float) -> float:
    """0.00001 rather than 9.999999747378752e-06: the shortest number that is the same 32-bit float."""
    return float(str(np.float32(value)))


def shown(name: str) -> str:
    """The name of a tensor in one line, even of a damaged file."""
    return name if name.isprintable() and len(name) < 80 else f"{name[:60]!r}"
