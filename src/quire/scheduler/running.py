"""Requests that have a row: their tickets, and the order in which a step serves them.

The elder, the oldest request that has not ended, comes first. The others follow by priority, then by arrival.
"""

from __future__ import annotations

import bisect

import numpy as np

from quire.core.request import Tokens
from quire.scheduler.loads import Loads
from quire.scheduler.next_step import NextStep
from quire.scheduler.queue import Claim, Ticket
from quire.scheduler.reuse import Reuse
from quire.scheduler.room import Room
from quire.scheduler.rows import Ints, Rows


class Running:
    """Gives rows to requests and takes them back."""

    def __init__(self, rows: Rows, reuse: Reuse, room: Room, loads: Loads, next_step: NextStep) -> None:
        self._rows, self._reuse, self._room, self._loads, self._next_step = rows, reuse, room, loads, next_step
        self.tickets: dict[int, Ticket] = {}
        """By row."""
        self._line: list[tuple[Claim, int]] = []
        """Rows in the order of their claims."""
        self._order = np.empty(0, dtype=np.int64)
        self._order_is_stale = False

    def __len__(self) -> int:
        return len(self.tickets)

    def order(self) -> Ints:
        """Rows: the elder first, then by claim."""
        if self._order_is_stale:
            rows = [row for _, row in self._line]
            if rows and self._line[0][0][0] != self._line[-1][0][0]:  # they differ in priority, which sorts first
                elder = min(rows, key=lambda row: self.tickets[row].arrival)
                rows.remove(elder)
                rows.insert(0, elder)
            self._order = np.array(rows, dtype=np.int64)
            self._order_is_stale = False
        return self._order

    def limits(self) -> list[int]:
        """The greatest length of each request."""
        return [ticket.request.limit for ticket in self.tickets.values()]

    def enter(self, ticket: Ticket) -> int:
        """Gives a request a row, which starts after the longest prefix that it can reuse."""
        row = self._rows.enter(ticket.request, ticket.outputs)
        self.tickets[row] = ticket
        bisect.insort(self._line, (ticket.claim, row))
        self._order_is_stale = True
        self._next_step.enter(row, ticket)
        self._reuse.start(row, ticket)
        return row

    def leave(self, row: int, keep: bool = True, to_tier: bool = True) -> Tokens:
        """Frees a row and its pages, once in each part that keeps something of it. Returns the outputs so far.

        `keep`: the prefix index keeps what was computed; `to_tier`: a tier does too.
        """
        ticket = self.tickets.pop(row)
        staged = self._next_step.leave(row)
        self._reuse.leave(row, ticket, keep and not staged, to_tier)
        self._loads.leave(row, staged)
        self._room.release(row)
        del self._line[bisect.bisect_left(self._line, (ticket.claim, row))]
        self._order_is_stale = True
        return self._rows.leave(row)
