"""The port of a place beyond this process that keeps records: a folder, a server, somebody else's store.

A connector is asked from threads that may wait; the engine never waits for one. It gets names and bytes:

    register(layout)     once before anything else, and again after a failure
    has(names)           look up, quickly: this one call may be made between two steps
    write(name, parts)   store; returning means finished
    read(name, parts)    load into staging memory; False: it is not there (any more), or not what it should be
    drop(name)           forget it, if it is there

It may also have

    forget(scope)        drop every record of the layout whose name has these bytes behind its first one; empty: all

Without, what it has outlives a cache that was dropped.

Whatever goes wrong is an exception: then the record is computed again, and the connector is left alone for a while.
One that says `brings_only = True` is only read: nobody writes to it, and no round trip is tried when it is registered.
The parts given to `write` hold another record soon after it returned: keep their bytes, not the memory.
The parts given to `read` stay the connector's until it returns, however late: nobody else uses that memory meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from quire.core.errors import QuireError


class TierFailed(QuireError):
    """A connector cannot do what it was asked to: what, and what the other side said."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What the bytes of records are: engines with equal fingerprints can read each other's records."""

    fingerprint: str
    """Hexadecimal, over the model's weights, dtypes, pages and manifests: part of every name outside this process."""
    unit_tokens: int
    unit_bytes: int
    largest_boundary_bytes: int
    manifest: str
    """JSON: for each stage and kind its page and where each layer's parts lie in it."""


class Connector(Protocol):
    @property
    def name(self) -> str:
        """For people: in log lines and counters."""
        ...

    def register(self, layout: Layout) -> None: ...

    def has(self, names: Sequence[bytes]) -> list[bool]: ...

    def write(self, name: bytes, parts: Sequence[memoryview]) -> None: ...

    def read(self, name: bytes, parts: Sequence[memoryview]) -> bool: ...

    def drop(self, name: bytes) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class Forgets(Protocol):
    """A connector that can also drop what is of one scope."""

    def forget(self, scope: bytes) -> None: ...
