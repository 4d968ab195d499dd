"""Records that leases keep in host memory: nothing evicts them, and they take at most a share of its blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from quire.tiers.host_cache import HostCache, Record

LEASE_SHARE = 0.5
"""Largest fraction of host memory for leases. The rest stays for loads, stores and prefixes that are not leased."""


class HostLeases:
    """Which records each lease keeps. Not thread-safe: its owner has the lock."""

    def __init__(self, cache: HostCache, coming: Callable[[], Iterable[Record]]) -> None:
        """`coming`: records that steps will have stored."""
        self._cache, self._coming = cache, coming
        self._kept: dict[str, Mapping[bytes, int]] = {}
        """By lease: its records, and how many blocks each has."""

    def most_blocks(self) -> int:
        return int(LEASE_SHARE * self._cache.blocks)

    def blocks(self, besides: str = "", own: Mapping[bytes, int] | None = None) -> int:
        """Blocks of all leases but one and of these records, each record once."""
        records = dict(own or {})
        for name, kept in self._kept.items():
            records |= {} if name == besides else kept
        return sum(records.values())

    def lease(self, name: str, records: Sequence[bytes]) -> bool:
        coming = {record.name: record for record in self._coming() if not record.is_forgotten}
        found = [self._cache.use(one) or coming.get(one) for one in records]
        own = {record.name: len(record.blocks) for record in found if record is not None}
        if len(own) < len(records) or self.blocks(name, own) > self.most_blocks():
            return False
        self.end_lease(name)
        self._kept[name] = own
        self._cache.leased.update(own.keys())
        return True

    def end_lease(self, name: str) -> None:
        self._cache.leased -= Counter(self._kept.pop(name, {}).keys())

    def is_stored(self, name: str) -> bool:
        return all(record in self._cache for record in self._kept[name])
