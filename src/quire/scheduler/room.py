"""Pages for rows: what rows lack, what fits, and how to make room. Cached prefixes are evicted before a request waits.

Fit is checked on all stages together, with the same demand that the plan was made with.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from quire.cache.compaction import compact
from quire.cache.tables import Need, join
from quire.core.events import PagesCompacted, PrefixEvicted, Publisher
from quire.core.search import greatest
from quire.kinds import Kind, counts
from quire.plan import bound
from quire.plan.plan import Plan
from quire.scheduler.next_step import NextStep
from quire.scheduler.reuse import Reuse
from quire.scheduler.rows import ONE, Ints, Rows

Needs = list[list[Need]]
"""By stage, by kind: pages that some rows lack."""
Pages = list[list[int]]
"""By stage, by kind: a number of pages."""
NONE = counts(0)


class Grants(NamedTuple):
    """Rows, the tokens that each computes in the next step, and the pages that they lack for that."""

    rows: Ints
    tokens: Ints
    needs: Needs


def add_pages(some: Pages, others: Pages) -> Pages:
    return [[a + b for a, b in zip(*own, strict=True)] for own in zip(some, others, strict=True)]


def sum_pages(needs: Needs) -> Pages:
    return [[need.total() for need in own] for own in needs]


def needs_of_first(count: int, rows: Ints, needs: Needs) -> Needs:
    """What the first `count` of the rows lack."""
    return needs if count == len(rows) else [[need.among(rows[:count]) for need in own] for own in needs]


def join_needs(all_needs: Sequence[Needs]) -> Needs:
    """What several groups of rows lack, one group after another."""
    return [
        [join([each[stage][kind] for each in all_needs]) for kind in range(len(own))]
        for stage, own in enumerate(all_needs[0])
    ]


@lru_cache(maxsize=1 << 16)
def _most_pages(kind: Kind, limit: int, ahead: int, page_tokens: int) -> int:
    return kind.minimum(limit, ahead, page_tokens)


class Room:
    """Checks whether rows fit, and makes room by evicting cached prefixes and compacting."""

    def __init__(self, plan: Plan, rows: Rows, reuse: Reuse, next_step: NextStep, publisher: Publisher) -> None:
        self.plan = plan
        self._lookahead = counts(plan.lookahead)
        self.memories = reuse.memories
        self.rows = rows
        self.index = reuse.index
        self.cache_is_in_use = False
        """An eviction has found nothing to evict since the last row was released."""
        self.no_pages: Pages = [[0] * len(memory.tables) for memory in self.memories]
        self._next_step = next_step
        self._publisher = publisher

    # ── questions ─────────────────────────────────────────────────────────

    def needs(self, rows: Ints, granted: Ints) -> Needs:
        """Pages that rows lack to compute the granted tokens, in addition to those in flight."""
        state, ahead = self.rows, NONE
        if np.count_nonzero(granted) < len(rows):
            rows, granted = rows[granted > 0], granted[granted > 0]
        computed = state.computed[rows]
        if self.plan.lookahead:
            ahead = np.clip(state.limit[rows] - computed - granted, 0, self.plan.lookahead)
        return [memory.needs(rows, computed, granted, ahead) for memory in self.memories]

    def fitting(self, rows: Ints, needs: Needs) -> int:
        """How many of the rows, from the first on, can get the pages that they lack, on every stage."""
        return min(memory.fitting(rows, own) for memory, own in zip(self.memories, needs, strict=True))

    def pages_for(self, row: int, tokens: int) -> Pages:
        """Pages that a row lacks to compute `tokens` tokens."""
        return sum_pages(self.needs(np.array([row]), np.array([tokens])))

    def is_short(self, pages: Pages) -> bool:
        """Whether these pages cannot be taken now."""
        for memory, own in zip(self.memories, pages, strict=True):
            if memory.pool.sheets_wanted(own) > memory.pool.free_sheets:
                return True
        return False

    def shrunk(self, beside: Pages, row: int, most: int) -> int:
        """The most tokens, up to `most`, that a row can compute if other rows take the pages in `beside`."""
        return greatest(0, most, lambda tokens: not self.is_short(add_pages(beside, self.pages_for(row, tokens))))

    def can_hold(
        self, lengths: Ints, limit: Ints, new: Ints = ONE, shared: Pages | None = None, kept_share: float = 0.0
    ) -> bool:
        """Capacity: whether requests of these lengths, with `new` tokens of each in flight, fit together in a pool
        without what is leased now and the part `kept_share` that the cache keeps; `shared`: what sharing saves."""
        shared = shared or self.no_pages
        for stage, memory in enumerate(self.memories):
            kinds = memory.stage.kinds
            pages = bound.demand(kinds, lengths - new, new, self._lookahead, limit)
            total = [sum(own.tolist()) for own in pages]
            total = [max(0, own - less) for own, less in zip(total, shared[stage], strict=True)]
            sheets = bound.sheets_needed(kinds, [counts(own) for own in total], self.plan.reserved_pages)
            if sheets > (memory.stage.sheets - self.index.leases.sheets(stage)) * (1 - kept_share):
                return False
        return True

    def can_stay(self, limits: Sequence[int]) -> bool:
        """Capacity: whether requests that grow to these limits fit together, whatever is leased, even if all take their
        maximum at once: a chunk or a window may take more pages on the way than at the end."""
        for memory in self.memories:
            kinds, ahead = memory.stage.kinds, self.plan.lookahead
            each = [[_most_pages(kind.kind, limit, ahead, kind.page_tokens) for limit in limits] for kind in kinds]
            pages = [counts(kind.groups * sum(own)) for kind, own in zip(kinds, each, strict=True)]
            if bound.sheets_needed(kinds, pages, self.plan.reserved_pages) > memory.stage.request_sheets:
                return False
        return True

    # ── making room ───────────────────────────────────────────────────────

    def evict(self, pages: Pages, must: bool, even_awaited: bool = False) -> bool:
        """Makes room for these pages: compacts if that suffices, else evicts cached prefixes. False: no more can be
        evicted."""
        while not self._gathers_enough(pages):
            evicted = self.index.evict(self._bytes_short(pages), must, even_awaited)
            if not evicted.pieces:
                self.cache_is_in_use = True
                return False
            self._publisher.publish(PrefixEvicted(self._publisher.step, *evicted))
            if not self.is_short(pages):
                return True
        return True

    def _gathers_enough(self, pages: Pages) -> bool:
        """Compacts if free pages in used sheets add up to the missing sheets. Returns whether the pages fit then."""
        for memory, own in zip(self.memories, pages, strict=True):
            short = memory.pool.sheets_short(own)
            if short > sum(
                (shelf.free_pages - need) // shelf.pages_per_sheet
                for shelf, need in zip(memory.pool.shelves, own, strict=True)
                if shelf.free_pages > need
            ):
                return False
        return self.compact() and not self.is_short(pages)

    def _bytes_short(self, pages: Pages) -> int:
        both = zip(self.memories, pages, strict=True)
        return sum(memory.pool.sheets_short(own) * memory.stage.sheet_bytes for memory, own in both)

    def make_at(self, row: int, tokens: int, beside: Pages) -> bool:
        """Makes room for the pages that a row lacks to continue at `tokens`, in addition to those in `beside`, by
        evicting cached prefixes. False: there is not enough to evict."""
        pages = add_pages(beside, [memory.lacks(row, tokens) for memory in self.memories])
        while self.is_short(pages):
            evicted = self.index.evict(self._bytes_short(pages), must=False)
            if not evicted.pieces:
                return False
            self._publisher.publish(PrefixEvicted(self._publisher.step, *evicted))
        return True

    def begin_at(self, row: int, tokens: int) -> None:
        """Takes the pages that a row needs to continue at `tokens`; the caller has called `make_at`."""
        for memory in self.memories:
            memory.keep_growing(row)
            memory.begin_at(row, tokens)

    def release(self, row: int) -> None:
        """Frees all pages of a row; cached prefixes that were in use may be evicted now."""
        for memory in self.memories:
            memory.release(row)
        self.cache_is_in_use = False
        self.index.note_release()

    def compact(self) -> bool:
        """Compacts the first stage where that frees a sheet. False: there is none."""
        for stage, memory in enumerate(self.memories):
            moves = compact(memory)
            for move in moves:
                self._next_step.copy(stage, move.kind, move.source, move.target)
                kind = memory.stage.kinds[move.kind].name
                self._publisher.publish(PagesCompacted(self._publisher.step, kind, len(move.source)))
            if moves:
                return True
        return False
