"""Planted bugs of loads and stores: what goes out to a tier and comes back, and when."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from quire.check.mutations.base import Mutation, Original
from quire.core.events import LoadStarted
from quire.scheduler.loads import Loads
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.stores import Stores
from quire.scheduler.waiting import Waiting


def _before_copies(take_due: Original) -> Original:
    def read_at_once(self: Any) -> Any:
        return tuple(replace(store, after=0) for store in take_due(self))

    return read_at_once


def _beside(pages: Original) -> Original:
    def next_to_it(self: Any, span: Any, chain: Any) -> Any:
        shelf = self._index.memories[span.stage].pool.shelves[span.kind]
        return (pages(self, span, chain) + 1) % len(shelf.holders)

    return next_to_it


def _without_loads(launch: Original) -> Original:
    return lambda self, *arguments: replace(launch(self, *arguments), loads=())


def _without_deadlines(over: Original) -> Original:
    return lambda self, _now: over(self, -1.0)


def _always_done(over: Original) -> Original:
    done = partial(replace, reason=None, is_staged=True, is_over=True, again=None)
    return lambda self, now: map(done, over(self, now))


def _with_time(begin: Original) -> Original:
    def wrong(self: Loads, row: int, waiting: Waiting, now: float, held_tokens: int) -> Any:
        if waiting.again:
            waiting.again = waiting.again[0], now + self.seconds_for(waiting.offer or 0)
        return begin(self, row, waiting, now, held_tokens)

    return wrong


def _may_have_less(close: Original) -> Original:
    return lambda self, number, reason, has_less=False: close(self, number, reason, has_less or reason is not None)


def _load_first(report: Original) -> Original:
    """Reports the load of a newcomer before its admission."""

    def wrong(self: Scheduler, row: int, load: Any = None) -> None:
        if load is not None:
            self.events.publish(LoadStarted(self.steps, load.request, load.tokens, load.number))
        report(self, row)

    return wrong


LOADS: dict[str, Mutation] = {
    "load-not-copied": Mutation("what a tier staged stays there", Scheduler, "_launch", _without_loads),
    "store-too-early": Mutation(
        "what goes out to a tier is read before the copies that bring it", Stores, "take_due", _before_copies
    ),
    "store-of-a-neighbour": Mutation("a record is filled from the pages next to its own", Stores, "_pages", _beside),
    "load-waits-for-ever": Mutation("loads have no deadline", Loads, "over", _without_deadlines),
    "failed-load-used": Mutation("a load that failed or is late counts as done", Loads, "over", _always_done),
    "second-try-has-more-time": Mutation(
        "a load that is tried again has a deadline of its own", Loads, "begin", _with_time
    ),
    "load-reported-first": Mutation(
        "a load is reported before its request is admitted", Scheduler, "_report_admitted", _load_first
    ),
    "failed-load-asked-again": Mutation("a load that failed is asked for again", Loads, "_close", _may_have_less),
}
