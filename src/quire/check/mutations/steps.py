"""Planted bugs of steps: their order, their results, their drafts, their deadlines."""

from __future__ import annotations

from typing import Any

import numpy as np

from quire.check.mutations.base import Mutation, Original, nothing
from quire.engine.engine import Engine
from quire.scheduler.admission import Admission
from quire.scheduler.drafts import Drafts
from quire.scheduler.rows import NO_TOKEN, Rows
from quire.scheduler.running import Running
from quire.scheduler.scheduler import Scheduler


def _every_ninth_lost(apply: Original) -> Original:
    def wrong(self: Scheduler, result: Any) -> Any:
        if result.number % 9 == 8:
            self.flying.pop(0)
            return []
        return apply(self, result)

    return wrong


def _still_expected(append: Original) -> Original:
    def wrong(self: Rows, rows: Any, tokens: Any) -> None:
        append(self, rows, tokens)
        self.expected[rows] += 1

    return wrong


def _same_epoch(leave: Original) -> Original:
    def wrong(self: Rows, row: int) -> Any:
        outputs = leave(self, row)
        self.epoch[row] -= 1
        return outputs

    return wrong


def _by_claim_alone(order: Original) -> Original:
    def wrong(self: Running) -> Any:
        order(self)
        return np.array(sorted(self.tickets, key=lambda row: self.tickets[row].claim), dtype=np.int64)

    return wrong


def _all_true(accept: Original) -> Original:
    def wrong(self: Drafts, step: Any, *arguments: Any) -> Any:
        _, last = accept(self, step, *arguments)
        return step.counts, last

    return wrong


def _past_stops(accept: Original) -> Original:
    def wrong(self: Drafts, *arguments: Any) -> Any:
        stops = self._rows.stops.copy()
        self._rows.stops[:] = NO_TOKEN
        taken = accept(self, *arguments)
        self._rows.stops[:] = stops
        return taken

    return wrong


def _over_budget(add: Original) -> Original:
    def wrong(self: Drafts, *arguments: Any) -> Any:
        self._batch_tokens += self._lookahead
        added = add(self, *arguments)
        self._batch_tokens -= self._lookahead
        return added

    return wrong


STEPS: dict[str, Mutation] = {
    "completion-lost": Mutation("every ninth result is thrown away", Scheduler, "apply", _every_ninth_lost),
    "pending-not-counted-down": Mutation("a token that came is still expected", Rows, "append", _still_expected),
    "stale-result-applied": Mutation(
        "a result for an earlier request of a row is given to the next", Rows, "leave", _same_epoch
    ),
    "elder-not-first": Mutation("priority goes before age, for the elder too", Running, "order", _by_claim_alone),
    "elder-waits-for-a-row": Mutation("the elder takes no row from the others", Admission, "admit_elder", nothing),
    "drafts-settle": Mutation("rejected drafts settle as well", Drafts, "accept", _all_true),
    "drafts-overtaken": Mutation("a row goes on before its drafts came back", Drafts, "waiting", nothing),
    "drafts-over-budget": Mutation("drafts make a step longer than planned for", Drafts, "add", _over_budget),
    "drafts-past-the-stop": Mutation("drafts after a stop token are accepted", Drafts, "accept", _past_stops),
    "deadline-missed": Mutation("deadlines are ignored", Engine, "_expire", nothing),
}
