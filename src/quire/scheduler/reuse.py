"""Between scheduler and prefix index: names requests' tokens, starts rows behind hits, hands over what settled."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from quire.cache.keys import extend, root_key
from quire.cache.memory import StageMemory
from quire.cache.prefix import PrefixIndex
from quire.plan.file import layout_fingerprint
from quire.plan.plan import Plan
from quire.scheduler.rows import Ints, Rows
from quire.scheduler.waiting import Waiting


class Reuse:
    def __init__(self, plan: Plan, memories: list[StageMemory], rows: Rows) -> None:
        self.index = PrefixIndex(plan, memories)
        self.rows = rows
        self._layout = layout_fingerprint(plan)

    def name(self, waiting: Waiting) -> None:
        """Gives a request the keys of its prompt."""
        if not self.index.disabled:
            root = root_key((self._layout, waiting.request.scope))
            waiting.keys = extend(root, waiting.request.prompt, self.index.unit)

    def start(self, row: int, waiting: Waiting) -> None:
        """Starts a row behind the longest prefix that every kind can prove."""
        hit = self.index.find(waiting.keys, int(self.rows.known[row]))
        waiting.hit_tokens, waiting.miss = hit.tokens, hit.miss.value if hit.miss else ""
        self.rows.remembered[row] = hit.tokens // self.index.unit
        if hit.tokens:
            self.index.adopt(row, hit)
            self.rows.settled[row] = self.rows.computed[row] = hit.tokens

    def remember(self, rows: Ints, tickets: Mapping[int, Waiting]) -> None:
        """Hands whole units that settled to the index, before windows give their pages back."""
        if self.index.disabled:
            return
        unit, state = self.index.unit, self.rows
        done = state.settled[rows] // unit
        crossing = done > state.remembered[rows]
        if not crossing.any():
            return
        prompt_units = (state.prompt[rows] - 1) // unit
        is_next = crossing & (done == state.remembered[rows] + 1) & (done > prompt_units)
        chosen = rows[is_next].tolist()
        if chosen:
            units = done[is_next].tolist()
            keys = [self._keys(row, tickets[row], end) for row, end in zip(chosen, units, strict=True)]
            self.index.remember_next(chosen, keys, [end - 1 for end in units], prompt_units[is_next].tolist())
        for place in np.flatnonzero(crossing & ~is_next).tolist():
            row, end = int(rows[place]), int(done[place])
            begin = int(state.remembered[row])
            self.index.remember(row, self._keys(row, tickets[row], end), begin, end, int(prompt_units[place]))
        state.remembered[rows] = done

    def _keys(self, row: int, ticket: Waiting, units: int) -> list[bytes]:
        """A request's keys, at least for its first `units` units."""
        begin, unit = len(ticket.keys), self.index.unit
        if begin < units:
            last = ticket.keys[-1] if begin else root_key((self._layout, ticket.request.scope))
            ticket.keys += extend(last, self.rows.tokens(row, begin * unit, units * unit), unit)
        return ticket.keys
