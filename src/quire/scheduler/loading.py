"""Rows whose first tokens are loaded from a tier: loads begin when a request is admitted, and end between steps.

A row that loads holds its pages and computes nothing. When the load is done, the row continues after it. If the load
fails or is late, the row is given up, and its request computes its tokens instead.
"""

from __future__ import annotations

from collections.abc import Iterator

from quire.core.events import LoadFailed, LoadFinished, Publisher
from quire.core.reasons import Reason, Why
from quire.core.tier import Load
from quire.scheduler.loads import LoadCopying, LoadLanded, LoadLost, LoadReady, Loads
from quire.scheduler.next_step import NextStep
from quire.scheduler.queue import Ticket
from quire.scheduler.reuse import Reuse
from quire.scheduler.room import Pages, Room
from quire.scheduler.rows import Rows
from quire.scheduler.running import Running


class Loading:
    """Begins loads for rows, and applies how they ended."""

    def __init__(
        self,
        loads: Loads,
        running: Running,
        rows: Rows,
        reuse: Reuse,
        room: Room,
        *,
        next_step: NextStep,
        publisher: Publisher,
    ) -> None:
        self._loads, self._rows, self._running, self._reuse = loads, rows, running, reuse
        self._room, self._next_step, self._publisher = room, next_step, publisher
        self._now = 0.0

    def begin(self, row: int, ticket: Ticket, promised: Pages) -> Load | None:
        """Starts a load if the tier has more of the tokens than the pool, and the request can then stay to its end.
        `promised`: pages that other rows take in the next step."""
        tokens, is_short = self._loads.offer(ticket), ticket.hit_tokens < ticket.leased
        if tokens < ticket.hit_tokens + (1 if is_short else self._reuse.index.unit):
            return None
        if self._running.order()[0] != row and not self._room.can_stay(self._running.limits()):
            return None
        for memory in self._room.memories if is_short else ():  # it waits if there is no room for the load
            memory.keep_growing(row)
        if not self._room.make_at(row, tokens, promised):
            return None
        rows, held_tokens = self._rows, int(self._rows.settled[row])
        self._room.begin_at(row, tokens)
        rows.settled[row] = rows.computed[row] = tokens
        rows.is_loading[row] = rows.is_reserved[row] = True
        self._reuse.skip(row)
        return self._loads.begin(row, ticket, self._now, held_tokens)

    def end(self, now: float) -> Iterator[tuple[int, Reason]]:
        """Lets rows continue whose loads are done. Returns rows whose loads failed or are late, and why."""
        self._now = now
        for outcome in list(self._loads.over(now)):
            load, row, ticket = outcome.load, outcome.row, self._running.tickets[outcome.row]
            if isinstance(outcome, LoadReady | LoadCopying):
                self._next_step.load(load.number, row)
            if isinstance(outcome, LoadReady | LoadLanded):
                self._rows.is_loading[row] = False
                ticket.loaded_tokens = load.tokens - load.held_tokens
                numbers = load.tokens, load.number, ticket.preemptions
                self._publisher.publish(LoadFinished(self._publisher.step, load.request, *numbers))
            elif isinstance(outcome, LoadLost):
                ticket.may_load, ticket.offer, ticket.again = outcome.again is not None, None, outcome.again
                failed = outcome.reason, load.tokens, load.number
                self._publisher.publish(LoadFailed(self._publisher.step, load.request, *failed))
                yield row, Reason(Why.LOAD_FAILED, because=outcome.reason)
