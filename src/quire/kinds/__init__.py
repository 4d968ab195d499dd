"""The kinds of layer memory, one file each. `kind_of` turns what a layer remembers into the rules it follows."""

from __future__ import annotations

from quire.core.errors import PlanError
from quire.core.memory import Memory
from quire.kinds.base import Counts, Interval, Keeps, Kind, counts, decisive_moments
from quire.kinds.chunked import Chunked
from quire.kinds.cross import Cross
from quire.kinds.full import Full
from quire.kinds.indexed import Indexed
from quire.kinds.latent import Latent
from quire.kinds.sink import Sink
from quire.kinds.state import State
from quire.kinds.window import Window

__all__ = [
    "KINDS",
    "Chunked",
    "Counts",
    "Cross",
    "Full",
    "Indexed",
    "Interval",
    "Keeps",
    "Kind",
    "Latent",
    "Sink",
    "State",
    "Window",
    "counts",
    "decisive_moments",
    "kind_of",
]


KINDS: dict[str, type[Kind]] = {one.kind: one for one in (Full, Window, Chunked, Latent, Indexed, State, Cross, Sink)}
"""By the name that `Memory.kind` has. A kind of your own is one more entry."""


def kind_of(memory: Memory) -> Kind:
    """The rules that a layer's memory follows; layers with equal rules may share pages."""
    if memory.kind not in KINDS:
        raise PlanError(f"kind {memory.kind!r} is not known: choose one of {', '.join(KINDS)}")
    return KINDS[memory.kind].of(memory)
