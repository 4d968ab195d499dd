"""A cache of pages with one least-recently-used list over all kinds: what the baselines of bench/reuse.py keep.

    held   key → how many running requests hold the page: it cannot be evicted
    idle   keys of pages that no request holds, the least recently used first

A key is the name of the prefix that ends with the page, and the kind. Equal pages of several requests are kept once.
Bytes are counted, places are not: there is no fragmentation.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

KINDS = 8
"""Of a model at most: a key is name × KINDS + kind."""


class PageCache:
    def __init__(self, page_bytes: Sequence[int], capacity_bytes: float) -> None:
        """`page_bytes`: of one page of each kind."""
        assert len(page_bytes) <= KINDS
        self.page_bytes, self.capacity_bytes = tuple(page_bytes), capacity_bytes
        self.held: dict[int, int] = {}
        self.idle: OrderedDict[int, None] = OrderedDict()
        self.used_bytes = self.idle_bytes = 0
        """Used: held, idle and private."""

    def __contains__(self, key: int) -> bool:
        return key in self.held or key in self.idle

    @property
    def room_bytes(self) -> float:
        """What could be had if everything idle were evicted."""
        return self.capacity_bytes - self.used_bytes + self.idle_bytes

    def take(self, size_bytes: int) -> bool:
        """Private bytes: evicts what must go. False: there is no room, and nothing was done."""
        if size_bytes > self.room_bytes:
            return False
        while self.used_bytes + size_bytes > self.capacity_bytes:
            key, _ = self.idle.popitem(last=False)
            size = self.page_bytes[key % KINDS]
            self.used_bytes -= size
            self.idle_bytes -= size
        self.used_bytes += size_bytes
        return True

    def give(self, size_bytes: int) -> None:
        self.used_bytes -= size_bytes

    def hold(self, keys: Iterable[int]) -> bool:
        """For a request: pages that exist are shared, the others are made. False: no room, and nothing was done."""
        new: list[int] = []
        known: list[int] = []
        for key in keys:
            if key in self.held:
                self.held[key] += 1
            elif key in self.idle:
                del self.idle[key]
                self.idle_bytes -= self.page_bytes[key % KINDS]
                self.held[key] = 1
            else:
                new.append(key)
                continue
            known.append(key)
        if not self.take(sum(self.page_bytes[key % KINDS] for key in new)):
            self.release(reversed(known))
            return False
        for key in new:
            self.held[key] = 1
        return True

    def release(self, keys: Iterable[int]) -> None:
        """By a request: a page that no other one holds is idle, and the last to be evicted so far."""
        for key in keys:
            count = self.held[key]
            if count > 1:
                self.held[key] = count - 1
            else:
                del self.held[key]
                self.idle[key] = None
                self.idle_bytes += self.page_bytes[key % KINDS]

    def keep(self, key: int) -> None:
        """A copy that no request holds: used just now, made if it is not there and there is room."""
        if key in self.idle:
            self.idle.move_to_end(key)
        elif key not in self.held and self.take(size := self.page_bytes[key % KINDS]):
            self.idle[key] = None
            self.idle_bytes += size
