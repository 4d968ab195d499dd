"""The port of a store outside this process that keeps records: a folder, a server, a third party's store.

A connector is called from threads that may wait; the engine never waits for one. It receives names and bytes:

    register(layout)     once before anything else, and again after a failure
    has(names)           look up, quickly: this one call may be made between two steps
    write(name, parts)   store; returning means finished
    read(name, parts)    load into staging memory; False: it is not there (any more), or not what it should be
    drop(name)           delete it, if it is there

It may also have

    forget(scope)        drop every record of the layout whose name has these bytes after its first one; empty: all

Without `forget`, its records remain when the cache is dropped.

A failure is raised as an exception: the record is then computed again, and the connector is not used for a while.
A connector with `brings_only = True` is only read: it gets no writes, and registering it tests no round trip.
The memory given to `write` holds another record soon after the call returns: copy the bytes, do not keep the memory.
The memory given to `read` belongs to the connector until the call returns, however late; nothing else uses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from quire.core.errors import QuireError


class TierFailed(QuireError):
    """A connector cannot do what was requested: the message says what, and what the other side answered."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What the bytes of records are: engines with equal fingerprints can read each other's records."""

    fingerprint: str
    """Hexadecimal, over the model's weights, dtypes, pages and manifests: part of every name outside this process."""
    unit_tokens: int
    unit_bytes: int
    largest_boundary_bytes: int
    manifest: str
    """JSON: for each stage and kind its page and the offsets of each layer's parts in it."""


class Connector(Protocol):
    """Keeps records outside this process, under names, for engines with the same layout."""

    @property
    def name(self) -> str:
        """For people: in log lines and counters."""

    def register(self, layout: Layout) -> None: ...

    def has(self, names: Sequence[bytes]) -> list[bool]: ...

    def write(self, name: bytes, parts: Sequence[memoryview]) -> None: ...

    def read(self, name: bytes, parts: Sequence[memoryview]) -> bool: ...

    def drop(self, name: bytes) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class Forgets(Protocol):
    """A connector that can also drop the records of one scope."""

    def forget(self, scope: bytes) -> None: ...
