"""Planted bugs of host memory and the stores below it: what is found, what is brought back, what is forgotten."""

from __future__ import annotations

from typing import Any

from quire.check.mutations.base import Mutation, Original, always, nothing
from quire.tiers.host_cache import HostCache
from quire.tiers.host_loads import HostLoads, Progress
from quire.tiers.host_stores import HostStores
from quire.tiers.lower_tier import LowerTier
from quire.tiers.stack import Stack


def _found_at_once(accept: Original) -> Original:
    def wrong(self: HostStores, name: bytes, size_bytes: int) -> Any:
        place = accept(self, name, size_bytes)
        if place is not None:
            self._held.cache.publish(self._open[place.number].record)
        return place

    return wrong


def _though_pinned(reserve: Original) -> Original:
    def wrong(self: HostCache, name: bytes, size_bytes: int) -> Any:
        pins = [(record, record.pins) for record in self._records.values()]
        for record, _ in pins:
            record.pins = 0
        reserved = reserve(self, name, size_bytes)
        for record, count in pins:
            record.pins = count
        return reserved

    return wrong


def _read_no_more(cancel: Original) -> Original:
    def wrong(self: HostLoads, number: int) -> None:
        if number in self._open:
            self._open[number].progress = Progress.STAGED
        cancel(self, number)

    return wrong


def _read(read: Original) -> Original:
    return lambda self, name, parts: read(self, name, parts) or True


def _cache_alone(forget: Original) -> Original:
    del forget
    return lambda self, scope: self.held.cache.forget(scope)


TIERS: dict[str, Mutation] = {
    "found-before-it-is-there": Mutation(
        "a record is found in host memory before its bytes are there", HostStores, "accept", _found_at_once
    ),
    "failed-read-counts": Mutation("a record that could not be read counts as read", LowerTier, "read", _read),
    "pinned-record-evicted": Mutation(
        "host memory evicts records that transfers use", HostCache, "reserve", _though_pinned
    ),
    "blocks-free-while-read": Mutation(
        "a load that is given up frees its blocks while they are read into", HostLoads, "cancel", _read_no_more
    ),
    "host-forgets-nothing": Mutation("what is dropped stays in host memory", HostCache, "forget", nothing),
    "coming-record-not-forgotten": Mutation(
        "what is on its way when its scope is dropped is kept, and so is what lies below", Stack, "forget", _cache_alone
    ),
    "dropped-below-and-found": Mutation(
        "what is still to be dropped below is loaded again", LowerTier, "_may_bring", always(True)
    ),
}
