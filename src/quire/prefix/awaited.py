"""Cached prefixes that queued requests would reuse: they are evicted last, and admission leaves room for them."""

from __future__ import annotations

from quire.prefix.coverage import Coverage
from quire.prefix.eviction import Eviction
from quire.prefix.hit import Place
from quire.prefix.nodes import Chain, Nodes

MOST_SHARE = 0.25
"""The most of the pool that admission leaves to such prefixes."""


class Awaited:
    """Counts, for each node, the queued requests that would continue from its end."""

    def __init__(self, nodes: Nodes, coverage: Coverage, eviction: Eviction) -> None:
        self._nodes, self._coverage, self._eviction = nodes, coverage, eviction
        self.requests = 0
        """Queued requests that would reuse a cached prefix."""
        self._bytes_of: dict[int, float] = {}
        """By awaited node: the bytes that keeping it takes."""
        self._bytes = 0.0

    def add(self, chain: Chain) -> int:
        """A queued request would continue from the chain's end. Returns the node."""
        node = chain.item(-1)
        self.requests += 1
        self._nodes.awaited[node] += 1
        if node not in self._bytes_of:
            self._bytes_of[node] = size = self._coverage.bundle_bytes(self._own_tokens(chain))
            self._bytes += size
        return node

    def _own_tokens(self, chain: Chain) -> int:
        """Tokens of a chain after the last node where another chain branches off."""
        nodes = self._nodes
        forks = (nodes.children[chain[:-1]] > 1).nonzero()[0]
        return nodes.tokens.item(chain.item(-1)) - (nodes.tokens.item(chain.item(forks[-1])) if len(forks) else 0)

    def remove(self, place: Place) -> None:
        """A request that awaited this place has left the queue, or awaits another one."""
        nodes, node = self._nodes, place.node
        self.requests -= 1
        if nodes.key[node] == place.key and nodes.awaited[node]:
            nodes.awaited[node] -= 1
            if not nodes.awaited[node]:
                self._drop(node)
            if not nodes.awaited[node] and (not nodes.children[node] or nodes.is_boundary[node]):
                self._eviction.push(node)

    def share(self, but: Place | None = None) -> float:
        """The part of the pool that these prefixes take, without the one at `but`, up to `MOST_SHARE`."""
        size = self._bytes - (self._bytes_of.get(but.node, 0.0) if but is not None else 0.0)
        return min(MOST_SHARE, size / self._coverage.pool_bytes)

    def forget(self, bundle: Chain) -> None:
        """These nodes are evicted."""
        for node in bundle.tolist() if self._bytes_of else ():
            self._drop(node)

    def _drop(self, node: int) -> None:
        self._bytes -= self._bytes_of.pop(node, 0.0)
