"""Planted bugs of policy: who is let in, in which order, past how many; who stays; who was served what."""

from __future__ import annotations

from typing import Any

import numpy as np

from quire.check.mutations.base import Mutation, Original, always, number
from quire.scheduler import admission, scheduler
from quire.scheduler.admission import Admission
from quire.scheduler.queue import FairQueue, Queue, Ticket
from quire.scheduler.room import Room
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
        self._of_tenant[waiting.request.tenant].sort(key=lambda one: one.arrival)

    return wrong


def _without_bound(add: Original) -> Original:
    return lambda self, waiting, *_returning, **_named: add(self, waiting, True)


def _next_token(likely_length: Original) -> Original:
    del likely_length
    return lambda _self, waiting: len(waiting.request.prompt) + len(waiting.outputs) + 1


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
}
