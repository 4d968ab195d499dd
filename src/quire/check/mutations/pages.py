"""Planted bugs of the bound and of pages: counted wrongly, freed too early or never, moved without their bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from quire.cache import compaction
from quire.cache.memory import StageMemory
from quire.cache.pool import Pool
from quire.cache.tables import Table
from quire.check.mutations.base import Mutation, Original, nothing, replaced
from quire.plan import bound
from quire.scheduler import room
from quire.scheduler.next_step import NextStep
from quire.scheduler.room import Room
from quire.scheduler.scheduler import Scheduler


def _without_reserved(sheets_needed: Original) -> Original:
    return lambda kinds, pages, *_reserved: sheets_needed(kinds, pages)


def _one_short(minimum: Original) -> Original:
    return lambda *arguments: max(1, minimum(*arguments) - 1)


def _one_too_many(minimum: Original) -> Original:
    return lambda *arguments: minimum(*arguments) + 1


def _always(admits: Original) -> Original:
    del admits
    return lambda plan, length: length <= 2 * plan.max_length


def _one_token_further(cut: Original) -> Original:
    return lambda self, rows, settled: cut(self, rows, settled + 1)


def _by_computed(apply: Original) -> Original:
    def wrong(self: Scheduler, result: Any) -> Any:
        ended = apply(self, result)
        rows = np.array(sorted(self.running.tickets), dtype=np.int64)
        for memory in self.memories:
            memory.settle(rows, self.rows.computed[rows])
        return ended

    return wrong


def _twice(hold: Original) -> Original:
    def wrong(self: Pool, kind: int, pages: Any, holder: Any) -> None:
        hold(self, kind, pages, holder)
        hold(self, kind, pages, holder)

    return wrong


def _kept(preempt: Original) -> Original:
    def wrong(self: Scheduler, *arguments: Any) -> None:
        with replaced(StageMemory, "release", nothing):
            preempt(self, *arguments)

    return wrong


def _no_moves(compact: Original) -> Original:
    del compact
    return lambda *_arguments: []


def nothing_fixed(fixed: Original) -> Original:
    return lambda shelf: np.zeros_like(fixed(shelf))


def _without_copies(launch: Original) -> Original:
    return lambda self, *arguments, **computed: replace(launch(self, *arguments, **computed), copies=())


def _beyond_the_limit(needs: Original) -> Original:
    def wrong(self: Room, *arguments: Any) -> Any:
        self.rows.limit += self.plan.lookahead
        try:
            return needs(self, *arguments)
        finally:
            self.rows.limit -= self.plan.lookahead

    return wrong


def _without_ahead(needs: Original) -> Original:
    return lambda self, rows, settled, new, ahead: needs(self, rows, settled, new, ahead * 0)


PAGES: dict[str, Mutation] = {
    "reserved-page-forgotten": Mutation(
        "the bound does not count the pages that a backend keeps for itself", bound, "sheets_needed", _without_reserved
    ),
    "bound-one-short": Mutation("the bound asks for one sheet less than is needed", bound, "minimum", _one_short),
    "bound-one-too-many": Mutation("the bound asks for one sheet more than is needed", bound, "minimum", _one_too_many),
    "never-fits-waits": Mutation("a request that cannot run is accepted and waits", bound, "admits", _always),
    "freed-too-early": Mutation(
        "pages go back one token before they leave the live set", Table, "cut", _one_token_further
    ),
    "freed-in-flight": Mutation(
        "pages go back when tokens are scheduled, not when they settle", Scheduler, "apply", _by_computed
    ),
    "settle-missed": Mutation("pages that left the live set are never given back", StageMemory, "settle", nothing),
    "hold-counted-twice": Mutation("one more holder counts as two", Pool, "hold", _twice),
    "preempted-pages-kept": Mutation("a preempted request does not give its pages back", Scheduler, "_preempt", _kept),
    "compaction-off": Mutation("nothing is ever compacted", room, "compact", _no_moves),
    "pinned-page-moved": Mutation("compaction moves pages while they are read", compaction, "_fixed", nothing_fixed),
    "copies-dropped": Mutation("pages move in the tables, their bytes do not", NextStep, "launch", _without_copies),
    "cached-pages-kept": Mutation("pages that the cache evicts are not given back", StageMemory, "forget", nothing),
    "lookahead-not-clipped": Mutation("lookahead goes beyond a request's limit", Room, "needs", _beyond_the_limit),
    "lookahead-forgotten": Mutation("drafts get no pages", StageMemory, "needs", _without_ahead),
}
