"""Planted bugs of loads and stores: what goes out to a tier and comes back, and when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quire.check.mutations.base import Mutation, Original
from quire.core.events import LoadStarted
from quire.core.tier import Answer, TransferFailed, TransferIncomplete
from quire.scheduler.admission import Admission
from quire.scheduler.loads import LoadReady, Loads
from quire.scheduler.next_step import NextStep
from quire.scheduler.queue import Ticket
from quire.scheduler.stores import Stores


def _before_copies(launch: Original) -> Original:
    def read_at_once(self: NextStep, *arguments: Any, **computed: Any) -> Any:
        step = launch(self, *arguments, **computed)
        return replace(step, stores=tuple(replace(store, after=0) for store in step.stores))

    return read_at_once


def _beside(pages: Original) -> Original:
    def next_to_it(self: Any, span: Any, chain: Any) -> Any:
        shelf = self._index.memories[span.stage].pool.shelves[span.kind]
        return (pages(self, span, chain) + 1) % len(shelf.holders)

    return next_to_it


def _without_loads(launch: Original) -> Original:
    return lambda self, *arguments, **computed: replace(launch(self, *arguments, **computed), loads=())


def _without_deadlines(over: Original) -> Original:
    return lambda self, _now: over(self, -1.0)


def _always_done(over: Original) -> Original:
    return lambda self, now: (LoadReady(one.load, one.row) for one in over(self, now))


def _with_time(begin: Original) -> Original:
    def wrong(self: Loads, row: int, waiting: Ticket, now: float, held_tokens: int) -> Any:
        if waiting.again:
            waiting.again = waiting.again[0], now + self.seconds_for(waiting.offer or 0)
        return begin(self, row, waiting, now, held_tokens)

    return wrong


def _may_have_less(outcome: Original) -> Original:
    def wrong(self: Loads, answer: Answer) -> Any:
        if isinstance(answer, TransferFailed):
            answer = TransferIncomplete(answer.number, answer.reason)
        return outcome(self, answer)

    return wrong


def _load_first(report: Original) -> Original:
    """Reports the load of a newcomer before its admission."""

    def wrong(self: Admission, row: int, load: Any = None) -> None:
        if load is not None:
            step = self._publisher.step
            self._publisher.publish(LoadStarted(step, load.request, load.tokens, load.number))
        report(self, row)

    return wrong


LOADS: dict[str, Mutation] = {
    "load-not-copied": Mutation("what a tier staged stays there", NextStep, "launch", _without_loads),
    "store-too-early": Mutation(
        "what a tier stores is read before the copies that fill it", NextStep, "launch", _before_copies
    ),
    "store-of-a-neighbour": Mutation("a record is filled from the pages next to its own", Stores, "_pages", _beside),
    "load-waits-for-ever": Mutation("loads have no deadline", Loads, "over", _without_deadlines),
    "failed-load-used": Mutation("a load that failed or is late counts as done", Loads, "over", _always_done),
    "second-try-has-more-time": Mutation(
        "a load that is tried again has a deadline of its own", Loads, "begin", _with_time
    ),
    "load-reported-first": Mutation(
        "a load is reported before its request is admitted", Admission, "_report_admitted", _load_first
    ),
    "failed-load-asked-again": Mutation("a load that failed is asked for again", Loads, "_outcome", _may_have_less),
}
