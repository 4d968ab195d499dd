"""The tensors of a checkpoint folder: names, shapes and types from the headers; values one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from quire.core.errors import ModelError
from quire.worker.weights.packed import PackedWeight
from quire.worker.weights.safetensors import checkpoint_files

Readers = dict[str, Callable[[], PackedWeight]]
"""How each packed parameter is read, by its name without the format's own endings."""


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    folder: Path
    _files: dict[str, tuple[Path, Any]] = field(default_factory=dict)
    """The file that a tensor lies in, and that file, open."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._files)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def tensor(self, name: str) -> torch.Tensor:
        """It maps the file."""
        if name not in self._files:
            raise ModelError(f"{self.folder} has no tensor {name}: is the checkpoint whole?")
        path, file = self._files[name]
        try:
            found: torch.Tensor = file.get_tensor(name)
        except (SafetensorError, OSError, RuntimeError) as error:
            raise ModelError(f"{path} has {name}, which cannot be read: {' '.join(str(error).split())}") from None
        return found

    def optional(self, name: str) -> torch.Tensor | None:
        return self.tensor(name) if name in self._files else None

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._files[name][1].get_slice(name).get_shape())

    def dtype(self, name: str) -> str:
        """As safetensors spells it: F8_E4M3."""
        return str(self._files[name][1].get_slice(name).get_dtype())

    def where(self, name: str) -> str:
        """For messages: file and tensor."""
        return f"{self._files[name][0]}: {name}"

    def ending(self, suffix: str) -> list[str]:
        """Names with an ending, without it."""
        return [name.removesuffix(suffix) for name in self._files if name.endswith(suffix)]


@contextmanager
def open_stored(folder: Path) -> Iterator[Stored]:
    with ExitStack() as stack:
        stored = Stored(folder)
        for path in checkpoint_files(folder):
            try:
                file = stack.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, OSError) as error:
                raise ModelError(f"{path} cannot be read as safetensors: {' '.join(str(error).split())}") from None
            stored._files.update(dict.fromkeys(file.keys(), (path, file)))
        yield stored
