"""Requests that wait for a row and pages: a bounded queue, in the order of their claims."""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from quire.cache.gap import Gap
from quire.cache.keys import Hash
from quire.cache.nodes import NO_NODES, Chain
from quire.cache.prefix import Place
from quire.core.errors import QueueFull
from quire.core.reasons import QUEUED, Reason, WayBack, Why
from quire.core.request import Request
from quire.core.rules import Policy
from quire.scheduler.shares import Shares

PATIENCE = 256
"""Admissions by which others may go before a request because more of their prompt is cached."""
NO_GAP = Gap()
Claim = tuple[int, int]
"""Sorts requests: the lowest goes first."""


def _nothing() -> npt.NDArray[np.int32]:
    return np.empty(0, dtype=np.int32)


def claim_of(request: Request, arrival: int, policy: Policy) -> Claim:
    return (-request.priority if policy is Policy.PRIORITY else 0, arrival)


@dataclass(slots=True, eq=False)
class Waiting:
    """A request, when it came, and what it had yielded before it was preempted."""

    request: Request
    arrival: int
    claim: Claim
    outputs: npt.NDArray[np.int32] = field(default_factory=_nothing)
    preemptions: int = 0
    root: bytes = b""
    keys: list[bytes] = field(default_factory=list)
    """Of the whole units of its tokens, as far as they are known."""
    behind: Hash | None = None
    """The hash that gave them, to go on from; None: they were not asked for."""
    came_from: Place | None = None
    """The boundary that it goes on from, if it found one."""
    line: int = 0
    """Hits in a row that led to it."""
    is_counted: bool = False
    """What it found, or did not, was learned from."""
    awaits: Place | None = None
    """What it would go on from, while it waits."""
    cached: int = 0
    """Tokens of that."""
    chain: Chain = field(default_factory=lambda: NO_NODES)
    """That leads there."""
    is_found: bool = False
    """That is what was found when it was last looked up."""
    turn: int = 0
    """Admissions after which it was due in the order of arrival."""
    may_load: bool = True
    """False after a load failed: it computes its tokens."""
    offer: int | None = None
    """Tokens that the tier can bring; None: not asked yet."""
    again: tuple[int, float] | None = None
    """After a load failed that may succeed with less: so many tokens at most, by the deadline of the first."""
    hit_tokens: int = 0
    loaded_tokens: int = 0
    """That a tier brought beyond those, since it entered."""
    miss: Why | None = None
    gap: Gap = NO_GAP
    """What it did not find though it was computed before, and why."""
    is_reported: bool = False
    """That was reported; it is let in again after a load failed."""
    reason: Reason = QUEUED
    way_back: WayBack | None = None
    """After it was preempted, where there is a tier: how its tokens come back, and what that costs."""

    def tokens(self, begin: int, end: int) -> npt.NDArray[np.int32]:
        """Tokens [begin, end) of its prompt and of what it has yielded."""
        size = len(self.request.prompt)
        outputs = self.outputs[max(0, begin - size) : max(0, end - size)]
        return np.concatenate([self.request.prompt[begin:end], outputs])

    @property
    def known(self) -> int:
        """Tokens of its prompt and of what it has yielded."""
        return len(self.request.prompt) + len(self.outputs)

    @property
    def may_reuse(self) -> bool:
        """Log-probabilities of a prompt come from computing it: whoever wants them computes all of it, once."""
        return self.request.sampling.prompt_logprobs is None or bool(len(self.outputs))


class Queue:
    def __init__(self, bound: int) -> None:
        self.bound = bound
        self._by_claim: list[Waiting] = []
        self._by_arrival: list[Waiting] = []
        self._by_name: dict[str, Waiting] = {}
        self.admissions = 0
        """Requests that were let in so far."""
        self._cached: list[tuple[int, int, int]] = []
        """Those with a cached prefix, the longest first: priority, tokens and arrival of each."""
        self._by_number: dict[int, Waiting] = {}
        """The same, by arrival."""

    def __len__(self) -> int:
        return len(self._by_name)

    def in_turn(self) -> Iterator[Waiting]:
        """All that wait now, whoever comes or goes meanwhile. Of equal priority, those with the longest cached prefix
        go first, unless others have been patient for too long."""
        everyone = self._by_claim.copy()
        return self._by_cached(everyone) if self._cached else iter(everyone)

    def _by_cached(self, everyone: list[Waiting]) -> Iterator[Waiting]:
        """Of each priority: those at the head that others passed long enough, those with a cached prefix, the rest."""
        ahead = deque(self._by_number[arrival] for _, _, arrival in self._cached)
        named: set[int] = set()
        overdue_turn, priority, is_patient = self.admissions - PATIENCE, everyone[0].claim[0], True
        for waiting in everyone:
            is_patient = (is_patient or waiting.claim[0] != priority) and waiting.turn <= overdue_turn
            priority = waiting.claim[0]
            while not is_patient and ahead and ahead[0].claim[0] <= priority:
                if (first := ahead.popleft()).arrival not in named:
                    named.add(first.arrival)
                    yield first
            if waiting.arrival not in named:
                named.add(waiting.arrival)
                yield waiting

    def prefer(self, waiting: Waiting, tokens: int) -> None:
        """So many tokens of it are cached now."""
        if waiting.cached:
            del self._cached[bisect.bisect_left(self._cached, _preference(waiting))]
            del self._by_number[waiting.arrival]
        waiting.cached = tokens
        if tokens:
            bisect.insort(self._cached, _preference(waiting))
            self._by_number[waiting.arrival] = waiting

    def is_overdue(self, waiting: Waiting) -> bool:
        """Others went first long enough."""
        return self.admissions >= waiting.turn + PATIENCE

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._by_arrival)

    def add(self, waiting: Waiting, returning: bool = False) -> None:
        """A preempted request returns whatever the bound: it was accepted before."""
        if not returning and len(self) >= self.bound:
            raise QueueFull(f"{len(self):,} requests wait already: come back later or raise the queue's bound")
        bisect.insort(self._by_claim, waiting, key=lambda one: one.claim)
        bisect.insort(self._by_arrival, waiting, key=lambda one: one.arrival)
        self._by_name[waiting.request.name] = waiting
        if not returning:
            waiting.turn = self.admissions + len(self) - 1

    def remove(self, waiting: Waiting) -> None:
        del self._by_claim[bisect.bisect_left(self._by_claim, waiting.claim, key=lambda one: one.claim)]
        del self._by_arrival[bisect.bisect_left(self._by_arrival, waiting.arrival, key=lambda one: one.arrival)]
        del self._by_name[waiting.request.name]
        self.prefer(waiting, 0)

    def elder(self) -> Waiting | None:
        return self._by_arrival[0] if self._by_arrival else None

    def find(self, name: str) -> Waiting | None:
        return self._by_name.get(name)


def _preference(waiting: Waiting) -> tuple[int, int, int]:
    return waiting.claim[0], -waiting.cached, waiting.arrival


class FairQueue(Queue):
    """Tenants take turns, by what they were served; each one's requests in the order in which they came."""

    def __init__(self, bound: int, shares: Shares) -> None:
        super().__init__(bound)
        self._shares = shares
        self._of_tenant: dict[str, list[Waiting]] = {}

    def add(self, waiting: Waiting, returning: bool = False) -> None:
        super().add(waiting, returning)
        own = self._of_tenant.setdefault(waiting.request.tenant, [])
        bisect.insort(own, waiting, key=lambda one: one.arrival)

    def remove(self, waiting: Waiting) -> None:
        super().remove(waiting)
        own = self._of_tenant[waiting.request.tenant]
        own.remove(waiting)
        if not own:
            del self._of_tenant[waiting.request.tenant]

    def in_turn(self) -> Iterator[Waiting]:
        """As if each one named had been served its prompt already, so that others come next."""
        own = {tenant: deque(self._preferred(waiting)) for tenant, waiting in self._of_tenant.items()}
        served = {tenant: self._shares.served(tenant) for tenant in own}
        while served:
            tenant = min(served, key=lambda one: (served[one], own[one][0].arrival))
            waiting = own[tenant].popleft()
            served[tenant] += len(waiting.request.prompt) / self._shares.weight(tenant)
            if not own[tenant]:
                del served[tenant]
            yield waiting

    def _preferred(self, waiting: list[Waiting]) -> list[Waiting]:
        """Of one tenant: the longest cached prefix first, unless others have been patient for too long."""
        if not self._cached:
            return waiting

        def place(one: Waiting) -> tuple[bool, int, int]:
            is_overdue = self.is_overdue(one)
            return not is_overdue, 0 if is_overdue else -one.cached, one.arrival

        return sorted(waiting, key=place)
