"""Planted bugs of policy: who is let in, in which order, past how many; who stays; who was served what."""

from __future__ import annotations

from typing import Any

import numpy as np

from quire.check.mutations.base import Mutation, Original, always, nothing, number
from quire.scheduler import admission, claims, scheduler
from quire.scheduler.admission import Admission
from quire.scheduler.queue import FairQueue, Queue, Ticket
from quire.scheduler.room import Room
from quire.scheduler.rows import Rows
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.shares import Shares


def _at_the_end(can_stay: Original) -> Original:
    del can_stay

    def wrong(self: Room, limits: Any) -> bool:
        return self.can_hold(np.array(limits), np.array(limits))

    return wrong


def _to_the_length(can_hold: Original) -> Original:
    return lambda self, lengths, _limits, *rest: can_hold(self, lengths, lengths, *rest)


def _with_credit(enter: Original) -> Original:
    del enter

    def wrong(self: Shares, tenant: str, weight: float) -> None:
        self._weights[tenant] = weight
        self._served.setdefault(tenant, 0.0)
        self._requests[tenant] = self._requests.get(tenant, 0) + 1

    return wrong


def _by_arrival(claim_of: Original) -> Original:
    del claim_of
    return lambda _request, arrival, _policy: (0, arrival)


def _own_by_arrival(add: Original) -> Original:
    def wrong(self: FairQueue, waiting: Ticket, returning: bool = False) -> None:
        add(self, waiting, returning)
        self.of_tenant[waiting.request.tenant].sort(key=lambda one: one.arrival)

    return wrong


def _without_bound(add: Original) -> Original:
    return lambda self, waiting, *_returning, **_named: add(self, waiting, True)


def _next_token(likely_length: Original) -> Original:
    del likely_length
    return lambda _self, waiting: len(waiting.request.prompt) + len(waiting.outputs) + 1


def _equal_rows(rows: Original) -> Original:
    del rows
    return lambda self, count: dict.fromkeys(self._requests, max(1, count / len(self._requests)))


def _the_elders(row_to_give: Original) -> Original:
    del row_to_give
    return lambda _tenant, running, _rows: int(running.order()[0])


def _the_newest(row_to_give: Original) -> Original:
    del row_to_give
    return lambda _tenant, running, _rows: int(running.order()[-1])


def _the_first(never_preempted: Original) -> Original:
    del never_preempted
    return lambda self, tenant: self.of_tenant[tenant][0]


def _any_room(has_room: Original) -> Original:
    return lambda self, _count=1: has_room(self)


POLICY: dict[str, Mutation] = {
    "preempted-for-ever": Mutation(
        "a request that was preempted often returns as others do", admission, "MOST_PREEMPTIONS", number(1 << 20)
    ),
    "stay-counted-at-the-end": Mutation(
        "whether requests can stay is computed for their last tokens alone", Room, "can_stay", _at_the_end
    ),
    "loaded-without-room": Mutation(
        "a load begins though its request may be preempted", Room, "can_stay", always(True)
    ),
    "lookahead-ends-with-outputs": Mutation(
        "admission counts lookahead up to the likely length only", Room, "can_hold", _to_the_length
    ),
    "outputs-not-expected": Mutation(
        "admission counts no outputs of newcomers", Admission, "likely_length", _next_token
    ),
    "priority-ignored": Mutation("requests go in the order of arrival", scheduler, "claim_of", _by_arrival),
    "own-priority-ignored": Mutation(
        "a tenant's requests go in the order of arrival", FairQueue, "add", _own_by_arrival
    ),
    "queue-without-bound": Mutation("the queue takes any number of requests", Queue, "add", _without_bound),
    "sight-of-one": Mutation(
        "a step looks no further than the first that cannot start", admission, "QUEUE_SIGHT", number(1)
    ),
    "credit-for-absence": Mutation(
        "a tenant that comes back has credit for its absence", Shares, "enter", _with_credit
    ),
    "row-never-returned": Mutation(
        "a tenant keeps all rows, however many others wait", Scheduler, "_return_row", nothing
    ),
    "row-of-the-elder-returned": Mutation(
        "the row that a tenant gives back is the elder's", claims, "row_to_give", _the_elders
    ),
    "row-of-anyone-returned": Mutation(
        "the newest request gives its row back, whatever its tenant's share is", claims, "row_to_give", _the_newest
    ),
    "rows-without-weights": Mutation("rows are shared without regard to weights", Shares, "rows", _equal_rows),
    "row-taken-again-and-again": Mutation(
        "a request that was preempted takes a row from another", FairQueue, "never_preempted", _the_first
    ),
    "last-row-taken-to-stay": Mutation(
        "a request that was preempted often takes the last free row", Rows, "has_room", _any_room
    ),
}
