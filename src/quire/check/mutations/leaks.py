"""Planted bugs that leave something behind: not pages, but what other owners keep for a request."""

from __future__ import annotations

from typing import Any

from quire.check.mutations.base import Mutation, Original, nothing
from quire.prefix.junctions import Junctions
from quire.prefix.nodes import NO_NODES
from quire.scheduler.loads import Loads
from quire.scheduler.reuse import Reuse
from quire.scheduler.rows import Rows
from quire.scheduler.shares import Shares
from quire.scheduler.stores import Stores
from quire.tiers.held_records import HeldRecords
from quire.tiers.host_cache import HostCache, Record


def _chain_kept(leave: Original) -> Original:
    def wrong(self: Reuse, row: int, *arguments: Any) -> None:
        leave(self, row, *arguments)
        self._chains[row] = NO_NODES

    return wrong


def _still_next(leave: Original) -> Original:
    def wrong(self: Junctions, row: int) -> None:
        before = dict(self._next)
        leave(self, row)
        self._next.update(before)

    return wrong


def _name_kept(leave: Original) -> Original:
    def wrong(self: Rows, row: int) -> Any:
        name = self.requests[row].name
        outputs = leave(self, row)
        self.row_of[name] = row
        return outputs

    return wrong


def _of_another(want: Original) -> Original:
    return lambda self, key: want(self, key[::-1])


def _a_block_lost(forget: Original) -> Original:
    def wrong(self: HostCache, record: Record) -> None:
        record.blocks = record.blocks[1:]
        forget(self, record)

    return wrong


def _open_kept(leave: Original) -> Original:
    del leave
    return lambda self, _row, staged: self.drop(staged)


LEAKS: dict[str, Mutation] = {
    "prompt-never-counted-out": Mutation(
        "a prompt is compared with others though its request has ended", Junctions, "remove", nothing
    ),
    "unit-awaited-in-vain": Mutation(
        "a row that left still counts as computing its next unit", Junctions, "leave", _still_next
    ),
    "wrong-unit-wanted": Mutation(
        "a boundary is wanted after a unit that no request has", Junctions, "want", _of_another
    ),
    "chain-of-a-row-kept": Mutation("the nodes of a row are kept when it leaves", Reuse, "leave", _chain_kept),
    "name-of-a-row-kept": Mutation("a request that left is still found by its name", Rows, "leave", _name_kept),
    "tenant-never-leaves": Mutation(
        "a tenant whose last request ended is still counted as here", Shares, "leave", nothing
    ),
    "staged-load-kept": Mutation("what a tier staged for an ended request stays there", Loads, "drop", nothing),
    "open-load-kept": Mutation("a load whose request is gone stays open", Loads, "leave", _open_kept),
    "given-up-store-kept": Mutation(
        "room for what an abandoned step should have stored stays taken", Stores, "give_up", nothing
    ),
    "host-pin-kept": Mutation("records stay pinned when a load is over", HeldRecords, "unpin", nothing),
    "host-block-lost": Mutation(
        "a block of a record that host memory evicts is lost", HostCache, "_forget", _a_block_lost
    ),
}
