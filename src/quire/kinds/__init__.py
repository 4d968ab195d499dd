"""The kinds of layer memory, one file each. `kind_of` turns what a layer remembers into the rules it follows."""

from __future__ import annotations

from collections.abc import Callable

from quire.core.errors import PlanError
from quire.core.memory import Memory
from quire.kinds.base import Counts, Interval, Kind, counts, decisive_moments
from quire.kinds.chunked import Chunked
from quire.kinds.cross import Cross
from quire.kinds.full import Full
from quire.kinds.latent import Latent
from quire.kinds.sink import Sink
from quire.kinds.state import State
from quire.kinds.window import Window

__all__ = [
    "KIND_NAMES",
    "Chunked",
    "Counts",
    "Cross",
    "Full",
    "Interval",
    "Kind",
    "Latent",
    "Sink",
    "State",
    "Window",
    "counts",
    "decisive_moments",
    "kind_of",
]


def _number(memory: Memory, field: str) -> int:
    value = getattr(memory, field)
    if not isinstance(value, int):
        raise PlanError(f"a layer of kind {memory.kind} needs {field}, which is missing")
    return value


_BUILDERS: dict[str, Callable[[Memory], Kind]] = {
    "full": lambda _memory: Full(),
    "window": lambda memory: Window(_number(memory, "window")),
    "chunked": lambda memory: Chunked(_number(memory, "chunk")),
    "latent": lambda memory: Latent(memory.tokens_per_state),
    "state": lambda memory: State(memory.rewinds),
    "cross": lambda memory: Cross(_number(memory, "encoder_tokens")),
    "sink": lambda memory: Sink(_number(memory, "sinks"), _number(memory, "window")),
}
KIND_NAMES = tuple(_BUILDERS)


def kind_of(memory: Memory) -> Kind:
    """The rules that a layer's memory follows; layers with equal rules may share pages."""
    if memory.kind not in _BUILDERS:
        raise PlanError(f"kind {memory.kind!r} is not known: choose one of {', '.join(KIND_NAMES)}")
    return _BUILDERS[memory.kind](memory)
