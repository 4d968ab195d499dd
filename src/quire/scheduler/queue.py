"""Requests that wait for a row and pages: a bounded queue, in the order of their claims."""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from quire.core.errors import QueueFull
from quire.core.reasons import QUEUED, Reason, WayBack, Why
from quire.core.request import Request
from quire.core.rules import Policy
from quire.prefix.gap import Gap
from quire.prefix.hit import Place
from quire.prefix.keys import Hash
from quire.prefix.nodes import NO_NODES, Chain
from quire.scheduler.shares import Shares

PATIENCE = 256
"""Admissions for which other requests may go before one because more of their prompts is cached."""
NO_GAP = Gap()
Claim = tuple[int, int]
"""Sorts requests: the lowest goes first."""


def claim_of(request: Request, arrival: int, policy: Policy) -> Claim:
    return (-request.priority if policy is Policy.PRIORITY else 0, arrival)


@dataclass(slots=True, eq=False)
class Ticket:
    """A request in the scheduler: its arrival, its outputs from before a preemption, and what it can reuse."""

    request: Request
    arrival: int
    claim: Claim
    outputs: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    preemptions: int = 0
    root: bytes = b""
    keys: list[bytes] = field(default_factory=list)
    """Keys of the whole units of its tokens, as far as they are computed."""
    hash_state: Hash | None = None
    """The state of the hash after these keys, to compute further ones; None: no keys are needed."""
    came_from: Place | None = None
    """The boundary that it continues from, if it found one."""
    line: int = 0
    """Length of the sequence of hits that led to it: each request continued from what the one before left."""
    is_counted: bool = False
    """Its hit or miss was already counted in the statistics."""
    awaits: Place | None = None
    """The cached place that it would continue from, while it waits."""
    cached: int = 0
    """Tokens up to that place."""
    chain: Chain = field(default_factory=lambda: NO_NODES)
    """The nodes that lead to that place."""
    is_found: bool = False
    """It was looked up: the three fields above are the result."""
    turn: int = 0
    """The number of admissions at which it would be admitted in the order of arrival."""
    may_load: bool = True
    """False after a load failed: it computes its tokens."""
    offer: int | None = None
    """Tokens that the tier can load; None: not asked yet."""
    again: tuple[int, float] | None = None
    """After a load failed that may succeed with a shorter prefix: (most tokens, deadline of the first load)."""
    hit_tokens: int = 0
    loaded_tokens: int = 0
    """Tokens that a tier loaded in addition to those, since it got its row."""
    miss: Why | None = None
    gap: Gap = NO_GAP
    """Tokens that were computed before and not found, and why."""
    is_reported: bool = False
    """The gap was reported: a request is admitted again after a load failed."""
    reason: Reason = QUEUED
    leased: int = 0
    """Tokens of a lease in a tier that its tokens begin with: it starts after them, or waits."""
    lease: str | None = None
    """The lease that is held when it ends."""
    way_back: WayBack | None = None
    """After a preemption, with a tier: whether its tokens are loaded or computed again, and what that costs."""

    def tokens(self, begin: int, end: int) -> npt.NDArray[np.int32]:
        """Tokens [begin, end) of its prompt and outputs."""
        size = len(self.request.prompt)
        outputs = self.outputs[max(0, begin - size) : max(0, end - size)]
        return np.concatenate([self.request.prompt[begin:end], outputs])

    @property
    def known(self) -> int:
        """Number of tokens of its prompt and outputs."""
        return len(self.request.prompt) + len(self.outputs)

    def after_preemption(self, outputs: npt.NDArray[np.int32], reason: Reason, way_back: WayBack | None) -> Ticket:
        """A new ticket of the same request, with its outputs so far, for the queue."""
        names = self.root, self.keys, self.hash_state
        again = Ticket(self.request, self.arrival, self.claim, outputs, self.preemptions + 1, *names)
        again.is_counted, again.turn, again.reason = True, self.turn, reason
        again.lease = self.lease
        again.may_load, again.way_back = way_back is None or way_back.is_load, way_back
        return again

    @property
    def may_reuse(self) -> bool:
        """Whether it may reuse prefixes. Prompt log-probabilities need the whole prompt to be computed, once."""
        return self.request.sampling.prompt_logprobs is None or bool(len(self.outputs))


class Queue:
    """Tickets of waiting requests by claim, by arrival and by name."""

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self._by_claim: list[Ticket] = []
        self._by_arrival: list[Ticket] = []
        self._by_name: dict[str, Ticket] = {}
        self.admissions = 0
        """Admissions so far."""
        self._cached: list[tuple[int, int, int]] = []
        """Requests with a cached prefix, the longest first within a priority: (−priority, −tokens, arrival)."""
        self._by_number: dict[int, Ticket] = {}
        """The same, by arrival."""

    def __len__(self) -> int:
        return len(self._by_name)

    def in_turn(self) -> Iterator[Ticket]:
        """All requests that wait at the time of the call. Within a priority, those with the longest cached prefix go
        first, unless others are overdue."""
        everyone = self._by_claim.copy()
        return self._by_cached(everyone) if self._cached else iter(everyone)

    def _by_cached(self, everyone: list[Ticket]) -> Iterator[Ticket]:
        """For each priority: overdue requests at its head, then those with a cached prefix, then the rest."""
        ahead = deque(self._by_number[arrival] for _, _, arrival in self._cached)
        named: set[int] = set()
        overdue_turn, priority, is_patient = self.admissions - PATIENCE, everyone[0].claim[0], True
        for ticket in everyone:
            is_patient = (is_patient or ticket.claim[0] != priority) and ticket.turn <= overdue_turn
            priority = ticket.claim[0]
            while not is_patient and ahead and ahead[0].claim[0] <= priority:
                if (first := ahead.popleft()).arrival not in named:
                    named.add(first.arrival)
                    yield first
            if ticket.arrival not in named:
                named.add(ticket.arrival)
                yield ticket

    def prefer(self, ticket: Ticket, tokens: int) -> None:
        """Notes that `tokens` tokens of a request are cached now."""
        if ticket.cached:
            del self._cached[bisect.bisect_left(self._cached, _preference(ticket))]
            del self._by_number[ticket.arrival]
        ticket.cached = tokens
        if tokens:
            bisect.insort(self._cached, _preference(ticket))
            self._by_number[ticket.arrival] = ticket

    def is_overdue(self, ticket: Ticket) -> bool:
        """Whether other requests have gone first for `PATIENCE` admissions."""
        return self.admissions >= ticket.turn + PATIENCE

    def __iter__(self) -> Iterator[Ticket]:
        return iter(self._by_arrival)

    def add(self, ticket: Ticket, returning: bool = False) -> None:
        """Adds a request. A preempted one (`returning`) is not subject to the bound: it was accepted before."""
        if not returning and len(self) >= self.bound:
            raise QueueFull(f"{len(self):,} requests wait already: come back later or raise the queue's bound")
        bisect.insort(self._by_claim, ticket, key=lambda one: one.claim)
        bisect.insort(self._by_arrival, ticket, key=lambda one: one.arrival)
        self._by_name[ticket.request.name] = ticket
        if not returning:
            ticket.turn = self.admissions + len(self) - 1

    def remove(self, ticket: Ticket) -> None:
        del self._by_claim[bisect.bisect_left(self._by_claim, ticket.claim, key=lambda one: one.claim)]
        del self._by_arrival[bisect.bisect_left(self._by_arrival, ticket.arrival, key=lambda one: one.arrival)]
        del self._by_name[ticket.request.name]
        self.prefer(ticket, 0)

    def elder(self) -> Ticket | None:
        return self._by_arrival[0] if self._by_arrival else None

    def find(self, name: str) -> Ticket | None:
        return self._by_name.get(name)


def _preference(ticket: Ticket) -> tuple[int, int, int]:
    return ticket.claim[0], -ticket.cached, ticket.arrival


class FairQueue(Queue):
    """Tenants take turns by the tokens they were served. A tenant's requests are ordered by priority, then by arrival:
    a priority moves a request only before others of its own tenant."""

    def __init__(self, bound: int, shares: Shares) -> None:
        super().__init__(bound)
        self._shares = shares
        self.of_tenant: dict[str, list[Ticket]] = {}

    def add(self, ticket: Ticket, returning: bool = False) -> None:
        super().add(ticket, returning)
        own = self.of_tenant.setdefault(ticket.request.tenant, [])
        bisect.insort(own, ticket, key=lambda one: (-one.request.priority, one.arrival))

    def remove(self, ticket: Ticket) -> None:
        super().remove(ticket)
        own = self.of_tenant[ticket.request.tenant]
        own.remove(ticket)
        if not own:
            del self.of_tenant[ticket.request.tenant]

    def in_turn(self) -> Iterator[Ticket]:
        """Counts the prompt of each returned request as served, so that other tenants come next."""
        own = {tenant: deque(self._preferred(tickets)) for tenant, tickets in self.of_tenant.items()}
        served = {tenant: self._shares.served(tenant) for tenant in own}
        while served:
            tenant = min(served, key=lambda one: (served[one], own[one][0].arrival))
            ticket = own[tenant].popleft()
            served[tenant] += len(ticket.request.prompt) / self._shares.weight(tenant)
            if not own[tenant]:
                del served[tenant]
            yield ticket

    def never_preempted(self, tenant: str) -> Ticket | None:
        return next((ticket for ticket in self.of_tenant[tenant] if not ticket.preemptions), None)

    def _preferred(self, tickets: list[Ticket]) -> list[Ticket]:
        """Within a tenant and priority: overdue requests first, then the longest cached prefix."""
        if not self._cached:
            return tickets

        def place(one: Ticket) -> tuple[int, bool, int, int]:
            is_overdue = self.is_overdue(one)
            return -one.request.priority, not is_overdue, 0 if is_overdue else -one.cached, one.arrival

        return sorted(tickets, key=place)
