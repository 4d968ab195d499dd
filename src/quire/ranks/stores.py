"""A cache of prefixes below host memory, for several ranks: each keeps its own part of every record in its own store.

    rank 0   write: orders the others to, waits, and writes its own part last: then the record is there
             read: all ranks read their parts into their blocks; without one of them the record is gone, and dropped
    others   follow orders in the order of steps: what a step copies to host memory is there when it is to be written

Blocks of host memory have the same numbers on all ranks, and rank 0 keeps them for a record until all have answered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Protocol

from quire.core.connector import Connector, Forgets, Layout, TierFailed
from quire.ranks.channel import Json

Answers = Callable[[], Sequence[Json]]
"""Waits for those of all other ranks."""


class BlockMemory(Protocol):
    """A rank's host memory."""

    def parts(self, blocks: Sequence[int], size_bytes: int) -> list[memoryview]: ...

    def blocks_of(self, parts: Sequence[memoryview]) -> list[int]: ...


def layout_of_rank(layout: Layout, rank: int, ranks: int) -> Layout:
    """Parts of another rank, or of another split, have other names."""
    text = f"{layout.fingerprint} rank {rank} of {ranks}"
    return replace(layout, fingerprint=hashlib.sha256(text.encode()).hexdigest())


class RankedStore:
    """`Connector` of rank 0, for a store that each rank has."""

    def __init__(self, own: Connector, memory: BlockMemory, ranks: int, order: Callable[[Json], Answers]) -> None:
        """`order`: sends an order to all other ranks."""
        self.name = own.name
        self._own, self._memory, self._ranks, self._order = own, memory, ranks, order

    def register(self, layout: Layout) -> None:
        _require(self._order({"do": "register", "layout": asdict(layout)})())
        self._own.register(layout_of_rank(layout, 0, self._ranks))

    def has(self, names: Sequence[bytes]) -> list[bool]:
        return self._own.has(names)

    def write(self, name: bytes, parts: Sequence[memoryview]) -> None:
        if order := self._about("write", name, parts):
            _require(self._order(order)())
        self._own.write(name, parts)

    def read(self, name: bytes, parts: Sequence[memoryview]) -> bool:
        order = self._about("read", name, parts)
        answers = self._order(order) if order else list
        try:
            is_there = self._own.read(name, parts)
        finally:
            others = answers()  # until then they write to the record's blocks
        if is_there and all(_require(others)):
            return True
        self.drop(name)
        return False

    def drop(self, name: bytes) -> None:
        self._own.drop(name)
        _require(self._order({"do": "drop", "name": name.hex()})())

    def forget(self, scope: bytes) -> None:
        assert isinstance(self._own, Forgets), "a folder is one"
        self._own.forget(scope)
        _require(self._order({"do": "forget", "name": scope.hex()})())

    def close(self) -> None:
        self._own.close()

    def _about(self, what: str, name: bytes, parts: Sequence[memoryview]) -> Json | None:
        """None: a trial of this rank's store, which lies outside host memory."""
        blocks = self._memory.blocks_of(parts)
        return {"do": what, "name": name.hex(), "blocks": blocks, "bytes": sum(map(len, parts))} if blocks else None


class FollowedStore:
    """The store of another rank."""

    def __init__(self, own: Connector, memory: BlockMemory, rank: int, ranks: int) -> None:
        self._own, self._memory, self._rank, self._ranks = own, memory, rank, ranks

    def follow(self, order: Json) -> Json:
        """What rank 0 is answered."""
        try:
            return {"number": order["number"], "is_there": self._do(order)}
        except Exception as error:  # whatever it is, the tier has failed, and not the rank
            return {"number": order["number"], "failed": f"rank {self._rank}: {error or type(error).__name__}"}

    def _do(self, order: Json) -> bool:
        what, name = order["do"], bytes.fromhex(order.get("name", ""))
        match what:
            case "register":
                self._own.register(layout_of_rank(Layout(**order["layout"]), self._rank, self._ranks))
            case "write":
                self._own.write(name, self._parts(order))
            case "read":
                return self._own.read(name, self._parts(order))
            case "drop":
                self._own.drop(name)
            case "forget":
                assert isinstance(self._own, Forgets), "a folder is one"
                self._own.forget(name)
        return True

    def _parts(self, order: Json) -> list[memoryview]:
        return self._memory.parts(order["blocks"], order["bytes"])


def _require(answers: Sequence[Json]) -> list[bool]:
    """Raises TierFailed if a rank could not do what it was ordered to."""
    if failed := [answer["failed"] for answer in answers if "failed" in answer]:
        raise TierFailed(failed[0])
    return [answer["is_there"] for answer in answers]
