"""Cached prefixes that queued requests would reuse: they are evicted last, and looked up again when they may be longer.

A request is looked up once when it starts to wait. It is looked up again only if a row adds a unit that it shares to
the index, or if the prefix that it would reuse is evicted.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.prefix.hit import Place
from quire.prefix.index import PrefixIndex
from quire.prefix.nodes import NO_NODES
from quire.scheduler.queue import Ticket


class Expectations:
    """The cached prefix that each queued request would continue from."""

    def __init__(self, index: PrefixIndex) -> None:
        self._index = index
        self._queued: dict[bytes, dict[int, Ticket]] = {}
        """Requests in the queue, by the first unit of their prompts and by arrival."""
        self.changed: dict[int, Ticket] = {}
        """Queued requests for which more may be cached by now, by arrival."""

    def expect(self, ticket: Ticket) -> int:
        """A request stays in the queue: the prefix that it would reuse is evicted last. Returns the prefix's tokens."""
        index, nodes = self._index, self._index.nodes
        if index.disabled or not ticket.may_reuse or not ticket.keys:
            return 0
        self._queued.setdefault(ticket.keys[0], {})[ticket.arrival] = ticket
        if not self._is_stale(ticket):
            return ticket.cached
        self._let_go(ticket)
        tokens = ticket.tokens(0, ticket.known) if len(ticket.outputs) else ticket.request.prompt
        hit = index.find(ticket.keys, ticket.root, tokens)
        ticket.is_found = True
        if hit.tokens:
            node = index.expect(hit.chain)
            ticket.awaits, ticket.chain = Place(node, nodes.key[node]), hit.chain
        return hit.tokens

    def _is_stale(self, ticket: Ticket) -> bool:
        """Whether the prefix that it would reuse may be gone, or may be longer by now."""
        nodes, place = self._index.nodes, ticket.awaits
        if ticket.arrival in self.changed or not ticket.is_found:
            return True
        return place is not None and (nodes.key[place.node] != place.key or not nodes.awaited[place.node])

    def forget(self, ticket: Ticket) -> None:
        """A request leaves the queue."""
        self._let_go(ticket)
        if ticket.keys and ticket.keys[0] in self._queued:
            alike = self._queued[ticket.keys[0]]
            alike.pop(ticket.arrival, None)
            if not alike:
                del self._queued[ticket.keys[0]]

    def _let_go(self, ticket: Ticket) -> None:
        self.changed.pop(ticket.arrival, None)
        ticket.is_found = False
        if ticket.awaits is not None:
            self._index.awaited.remove(ticket.awaits)
            ticket.awaits = None

    def note_kept(self, keys: Sequence[bytes], units: int) -> None:
        """The index has the first `units` units of a prompt now: queued requests that share more of them than their
        last lookup found are looked up again."""
        for ticket in self._queued.get(keys[0], {}).values() if units else ():
            known = ticket.cached // self._index.unit
            if known < min(units, len(ticket.keys)) and ticket.keys[known] == keys[known]:
                self.changed[ticket.arrival] = ticket

    def shared_pages(self, ticket: Ticket) -> list[list[int]]:
        """By stage and kind: pages that a queued request would share with running ones, that those share with each
        other, and leased ones among them. Only kinds that grow count: their pages stay shared while requests run."""
        place, nodes = ticket.awaits, self._index.nodes
        is_there = place is not None and nodes.key[place.node] == place.key
        chain = ticket.chain if is_there else NO_NODES
        return self._index.leases.takes.counted_twice(chain)
