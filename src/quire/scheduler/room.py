"""Room for rows: what they lack, how far it reaches, and what gives way. Cached prefixes go before anyone waits.

Fit is asked of every stage at once, with the demand that the plan was made with.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from quire.cache.compaction import compact
from quire.cache.memory import StageMemory
from quire.core.events import What
from quire.core.search import greatest
from quire.kinds import counts
from quire.plan import bound
from quire.plan.plan import Plan
from quire.scheduler.reuse import Copy, Reuse
from quire.scheduler.rows import Ints, Rows


class Room:
    def __init__(self, plan: Plan, rows: Rows, reuse: Reuse, copies: list[Copy], tell: Callable[..., None]) -> None:
        self.plan = plan
        self.memories = reuse.memories
        self.rows = rows
        self.index = reuse.index
        self.cache_is_in_use = False
        """Newcomers found nothing to forget since the last request left."""
        self._copies = copies
        self._tell = tell

    # ── questions ─────────────────────────────────────────────────────────

    def needs(self, memory: StageMemory, rows: Ints, granted: Ints) -> list[Ints]:
        """Pages of each kind that rows lack to compute what they were granted, beside what is in flight."""
        state = self.rows
        settled = state.settled[rows]
        new = state.computed[rows] - settled + granted
        if self.plan.lookahead:
            ahead = np.clip(state.limit[rows] - settled - new, 0, self.plan.lookahead)
        else:
            ahead = np.zeros_like(new)
        needs = memory.needs(rows, settled, new, ahead)
        return needs if granted.all() else [need * (granted > 0) for need in needs]

    def fitting(self, rows: Ints, granted: Ints) -> int:
        """How many rows, from the first on, can have what they were granted, on every stage."""
        return min(memory.fitting(self.needs(memory, rows, granted)) for memory in self.memories)

    def shrunk(self, rows: Ints, granted: Ints, index: int) -> int:
        """The most tokens that row `index` can have behind those before it."""
        before, upto = granted[:index], rows[: index + 1]
        return greatest(0, int(granted[index]) - 1, lambda n: self.fitting(upto, np.append(before, n)) > index)

    def can_hold(self, lengths: Ints, limit: Ints) -> bool:
        """Capacity: whether requests of these lengths, each in steady decode, fit together in the empty pool."""
        for memory in self.memories:
            pages = bound.demand(memory.stage.kinds, lengths - 1, counts(1), counts(self.plan.lookahead), limit)
            totals = [np.asarray(count.sum(), dtype=np.int64) for count in pages]
            if int(bound.sheets_needed(memory.stage.kinds, totals, self.plan.reserved_pages)) > memory.stage.sheets:
                return False
        return True

    # ── making room ───────────────────────────────────────────────────────

    def evict(self, rows: Ints, granted: Ints, must: bool) -> bool:
        """Forgets cached prefixes until all these rows fit. False: they do not, and no more can be forgotten."""
        while tokens := self.index.evict(self._units_short(rows, granted), must):
            self._tell(What.EVICTED, tokens=tokens)
            if self.fitting(rows, granted) == len(rows):
                return True
        self.cache_is_in_use = True
        return False

    def _units_short(self, rows: Ints, granted: Ints) -> int:
        """About how many units of a chain would make up for the sheets that are missing, at least one."""
        missing = 0
        for memory in self.memories:
            needs = [int(need.sum()) for need in self.needs(memory, rows, granted)]
            missing += memory.pool.sheets_short(needs) * memory.stage.sheet_bytes
        return 1 + int(missing // max(1.0, self.index.unit * self.plan.bytes_per_token))

    def make_at(self, row: int, tokens: int, rows: Ints, granted: Ints) -> bool:
        """Room for the pages that a row lacks to stand at `tokens`, beside what others were granted; cached prefixes
        give way."""
        while self._is_short_at(row, tokens, rows, granted):
            forgotten = self.index.evict(tokens // self.index.unit, must=False)
            if not forgotten:
                return False
            self._tell(What.EVICTED, tokens=forgotten)
        return True

    def _is_short_at(self, row: int, tokens: int, rows: Ints, granted: Ints) -> bool:
        for memory in self.memories:
            promised = [int(need.sum()) for need in self.needs(memory, rows, granted)]
            lacks = [own + other for own, other in zip(memory.lacks(row, tokens), promised, strict=True)]
            if memory.pool.sheets_short(lacks):
                return True
        return False

    def compact(self) -> bool:
        """Gathers pages where that frees a sheet. False: nowhere."""
        for stage, memory in enumerate(self.memories):
            moves = compact(memory)
            self._copies += [(stage, move.kind, move.source, move.target) for move in moves]
            for move in moves:
                self._tell(What.COMPACTED, reason=memory.stage.kinds[move.kind].name, pages=len(move.source))
            if moves:
                return True
        return False
