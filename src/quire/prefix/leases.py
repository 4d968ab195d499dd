"""Leases: prefixes that stay usable until a time, however much memory others need.

    sheets   ┃█████ longest request alone █████┃░░░ lease_sheets ░░░┃···· more requests, cache ····┃

    pending ──the request ends──▶ held ──its time, a release, a later boundary of the session──▶ ended
    room is counted for the       nothing evicts   └──the cache is dropped, a step fails──▶ broken
    request's whole length        its pages

A lease needs what a request that begins with its tokens needs to continue after them: the pages of kinds that grow, the
units of a tail, a state. Leases are granted while all of them together, each shared page counted once, stay within the
plan's `lease_sheets` on every stage. Every accepted request can run alone next to that many (`plan/bound.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import ClassVar

import numpy as np

from quire.core.errors import InputError
from quire.core.events import Event
from quire.core.search import greatest
from quire.prefix.boundaries import Boundaries
from quire.prefix.coverage import Coverage
from quire.prefix.eviction import Eviction
from quire.prefix.hit import Hit
from quire.prefix.lease_pages import LeasePages
from quire.prefix.lease_sizes import Pages
from quire.prefix.nodes import NO_NODES, Chain, Nodes


class LeaseRefusal(str, Enum):
    """Why a lease is not granted."""

    MEMORY = "memory"
    QUOTA = "quota"
    ABSENT = "absent"
    DISABLED = "disabled"


class Where(str, Enum):
    """Where a lease is."""

    POOL = "pool"
    HOST = "host"


class LeaseEnding(str, Enum):
    """Why a lease ended. The last three break it: its time was not over."""

    EXPIRED = "expired"
    RELEASED = "released"
    REPLACED = "replaced"
    NOTHING = "nothing_computed"
    DROPPED = "cache_dropped"
    FAILED = "step_failed"
    TIER = "tier_failed"


BREAKS = (LeaseEnding.DROPPED, LeaseEnding.FAILED, LeaseEnding.TIER)


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """What is asked for."""

    name: str
    owner: str
    seconds: float
    scope: bytes = b""
    """What all keys of the prefix begin with."""
    quota_bytes: int | None = None
    """The most bytes that leases of this owner may take; None: no limit of its own."""
    is_rolling: bool = False
    """The next request of its session moves it to its own end."""


@dataclass(frozen=True, slots=True, eq=False)
class Lease:
    """A lease that is held: the prefix along `chain` stays until `until`."""

    terms: LeaseTerms
    tokens: int
    until: float
    chain: Chain
    """Empty if it is in a tier."""
    size_bytes: int
    where: Where = Where.POOL


@dataclass(frozen=True, slots=True)
class LeaseAnswer:
    """Granted, or refused with what is possible."""

    name: str
    refusal: LeaseRefusal | None = None
    tokens: int = 0
    """Granted: of the prefix; with a request, at most."""
    until: float | None = None
    """Granted: on the engine's clock; None: counted from the end of its request."""
    earliest: float | None = None
    """Refused: when enough of the leases that are held now will have ended."""
    fewer_tokens: int = 0
    """Refused: a shorter prefix that would be granted now."""
    size_bytes: int = 0
    """What the lease takes, or would."""
    limit_bytes: int = 0
    """Refused: the memory, or the quota, that it exceeds."""
    where: Where = Where.POOL
    elsewhere: Where | None = None
    """Refused: a tier that has room for it once its tokens are computed."""


@dataclass(frozen=True, slots=True)
class Booking:
    """A lease of a request that has not ended."""

    terms: LeaseTerms
    pages: Pages
    request: str
    """Its name: another one may book the same lease once this one was released."""


@dataclass(frozen=True, slots=True)
class LeaseHeld(Event):
    """A prefix is kept until its lease ends."""

    name: ClassVar[str] = "lease_held"
    lease: str
    tokens: int


@dataclass(frozen=True, slots=True)
class LeaseMoved(Event):
    """A tier keeps a lease that was in the pool."""

    name: ClassVar[str] = "lease_moved"
    lease: str
    tokens: int


@dataclass(frozen=True, slots=True)
class LeaseEnded(Event):
    """A lease has ended, and why."""

    name: ClassVar[str] = "lease_ended"
    lease: str
    ending: LeaseEnding
    tokens: int

    @property
    def label(self) -> str:
        return self.ending.value


Needed = Callable[[Mapping[str, Lease]], Pages]
"""Pages that a new lease and these, which are held, need together."""


class Leases:
    """Which prefixes are leased, and whether one more fits."""

    def __init__(self, nodes: Nodes, boundaries: Boundaries, coverage: Coverage, eviction: Eviction) -> None:
        self._nodes, self._boundaries, self._coverage, self._eviction = nodes, boundaries, coverage, eviction
        self._stages = [memory.stage for memory in coverage.memories]
        self.takes = LeasePages(nodes, boundaries, coverage)
        self.held: dict[str, Lease] = {}
        self.pending: dict[str, Booking] = {}
        """By name: with a request that has not ended. While it runs, the lease of that name that is held stays."""
        self.pages: Pages = [[0] * len(stage.kinds) for stage in self._stages]
        """Of all leases that are held, each page once."""
        self.bytes_elsewhere: Callable[[str, str], int] = lambda _owner, _besides: 0
        """Of an owner's leases that are not in the pool, besides the one of a name."""
        self._ended: list[tuple[str, LeaseEnding, int]] = []
        self._began: list[tuple[str, int]] = []

    # ── questions ─────────────────────────────────────────────────────────

    def sheets(self, stage: int) -> int:
        """Sheets that held leases take, if their pages are gathered."""
        return self.takes.sheets(stage, self.pages[stage]) if self.held else 0

    def _fits(self, pages: Pages) -> bool:
        """Whether leases of so many pages altogether stay within the plan."""
        return all(self.takes.sheets(place, own) <= self._stages[place].lease_sheets for place, own in enumerate(pages))

    def _taken(self) -> Pages:
        """Pages of all leases, held and pending."""
        return _add(self.pages, *(one.pages for one in self.pending.values()))

    def is_end(self, node: int) -> bool:
        """Whether a lease ends at this node: what a hit there needs is copied, never taken over."""
        return bool(self._nodes.lease_ends[node])

    def is_of_another(self, name: str, owner: str) -> bool:
        return name in self.held and self.held[name].terms.owner != owner

    def check_name(self, terms: LeaseTerms) -> None:
        if terms.name in self.pending or self.is_of_another(terms.name, terms.owner):
            raise InputError(f"a lease named {terms.name} is there already: give each its own name")

    def of(self, owner: str) -> list[Lease]:
        return [lease for lease in self.held.values() if lease.terms.owner == owner]

    # ── asking ────────────────────────────────────────────────────────────

    def grant(self, terms: LeaseTerms, hit: Hit, now: float) -> LeaseAnswer:
        """Leases a prefix that is in the cache, or says what is possible."""
        if self._coverage.disabled:
            return LeaseAnswer(terms.name, LeaseRefusal.DISABLED)
        if not hit.tokens:
            return LeaseAnswer(terms.name, LeaseRefusal.ABSENT)
        if refused := self._why_not_along(terms, self._marked(hit.chain), hit.tokens):
            return self._with_fewer(refused, terms, hit.chain)
        self._hold(terms, hit.chain, now)
        lease = self.held[terms.name]
        return LeaseAnswer(terms.name, None, lease.tokens, lease.until, size_bytes=lease.size_bytes)

    def book(self, terms: LeaseTerms, request: str, length: int, chain: Chain) -> LeaseAnswer:
        """Counts room for a request of up to `length` tokens, whose end will be leased. `chain`: the nodes of its first
        units; those that the session's lease holds already count once."""
        if self._coverage.disabled:
            return LeaseAnswer(terms.name, LeaseRefusal.DISABLED)
        pages, shared = self.takes.up_to(length), self._of_session(terms.name, chain)
        for stage, kinds in enumerate(self._coverage.growing):
            for kind in kinds:
                pages[stage][kind] -= self.takes.count(stage, kind, shared, NO_NODES, 0)

        def needed(left: Mapping[str, Lease]) -> Pages:
            own = pages if terms.name in left else self.takes.up_to(length)
            return _add(self._union(left), own)

        if refused := self._over_quota(terms, pages, length) or self._over_memory(terms, length, pages, needed):
            return refused
        self.pending[terms.name] = Booking(terms, pages, request)
        return LeaseAnswer(terms.name, None, length, None, size_bytes=self.takes.size_bytes(pages))

    def _of_session(self, name: str, chain: Chain) -> Chain:
        """Nodes of a chain that the session's lease holds. Other leases may end before the request does."""
        old = self.held.get(name)
        return NO_NODES if old is None else chain[np.isin(chain, old.chain)]

    def _why_not_along(self, terms: LeaseTerms, chain: Chain, tokens: int) -> LeaseAnswer | None:
        """A key is charged all of its lease, memory what no other lease holds. A lease of the same name makes way."""
        size = self.takes.along(chain, is_counted=False)
        over = self._over_quota(terms, size, tokens, besides=terms.name)
        return over or self._over_memory(terms, tokens, self.takes.along(chain), lambda left: self._union(left, chain))

    def _over_quota(self, terms: LeaseTerms, pages: Pages, tokens: int, besides: str = "") -> LeaseAnswer | None:
        size, quota = self.takes.size_bytes(pages), terms.quota_bytes
        if quota is None or self._bytes_of(terms.owner, besides) + size <= quota:
            return None
        return LeaseAnswer(terms.name, LeaseRefusal.QUOTA, tokens, size_bytes=size, limit_bytes=quota)

    def _over_memory(self, terms: LeaseTerms, tokens: int, pages: Pages, needed: Needed) -> LeaseAnswer | None:
        """`pages`: what it adds now; `needed`: by it and those of the others that are left."""
        if self._fits(_add(self._taken(), pages)):
            return None
        limit = sum(stage.lease_sheets * stage.sheet_bytes for stage in self._stages)
        earliest, size = self._earliest(needed), self.takes.size_bytes(pages)
        return LeaseAnswer(
            terms.name, LeaseRefusal.MEMORY, tokens, earliest=earliest, size_bytes=size, limit_bytes=limit
        )

    def _bytes_of(self, owner: str, besides: str) -> int:
        """Bytes of an owner's leases but one; what several of them share counts each time."""
        booked = [one.pages for one in self.pending.values() if one.terms.owner == owner]
        held = sum(lease.size_bytes for lease in self.of(owner) if lease.terms.name != besides)
        return held + self.bytes_elsewhere(owner, besides) + sum(map(self.takes.size_bytes, booked))

    def _earliest(self, needed: Needed) -> float | None:
        """When it would fit, if no other lease is granted before; None: leases alone never leave it the room. What it
        shares with a lease that ends is its own from then on."""
        left, booked = dict(self.held), [one.pages for one in self.pending.values()]
        for name, lease in sorted(self.held.items(), key=lambda one: one[1].until):
            if name in self.pending:
                continue
            del left[name]
            if self._fits(_add(needed(left), *booked)):
                return lease.until
        return None

    def _union(self, left: Mapping[str, Lease], *more: Chain) -> Pages:
        return self.takes.union([*(one.chain for one in left.values()), *more])

    def _with_fewer(self, refused: LeaseAnswer, terms: LeaseTerms, chain: Chain) -> LeaseAnswer:
        """The same, with the longest earlier boundary that would be granted."""
        coverage, nodes = self._coverage, self._nodes
        usable = coverage.usable(chain, nodes.tokens[chain])[:-1]
        if coverage.has_boundaries:
            usable &= nodes.is_boundary[chain[:-1]] > 0
        places = usable.nonzero()[0]

        def would_be_granted(count: int) -> bool:
            return self._why_not_along(terms, chain[: places.item(count - 1) + 1], 0) is None

        most = greatest(0, len(places), would_be_granted)
        return replace(refused, fewer_tokens=nodes.tokens.item(chain.item(places.item(most - 1))) if most else 0)

    # ── holding and ending ────────────────────────────────────────────────

    def _marked(self, chain: Chain) -> Chain:
        if self._coverage.has_boundaries:
            self._eviction.promote(chain)
        return chain

    def _hold(self, terms: LeaseTerms, chain: Chain, now: float) -> None:
        """Takes the place of the lease of the same name, if there is one, which goes after the new one is counted."""
        nodes, end = self._nodes, self._marked(chain).item(-1)
        size = self.takes.size_bytes(self.takes.along(chain, is_counted=False))
        self.pages = _add(self.pages, self.takes.along(chain))
        self._note(chain, 1)
        old = self.held.pop(terms.name, None)
        tokens = nodes.tokens.item(end)
        self.held[terms.name] = Lease(terms, tokens, now + terms.seconds, chain, size)
        if old is not None:
            self._let_go(old, LeaseEnding.REPLACED)
        self._began.append((terms.name, tokens))

    def _note(self, chain: Chain, change: int) -> None:
        nodes, end = self._nodes, chain.item(-1)
        nodes.leased[chain] += change
        self.takes.note_leased()
        nodes.leased_tail[self._boundaries.tails.get(end, NO_NODES)] += change
        nodes.lease_ends[end] += change
        self._coverage.leased_states += int(nodes.lease_ends.item(end) == (change > 0)) * change

    def give_away(self, name: str) -> None:
        """A tier keeps it from now on."""
        self._let_go(self.held.pop(name), None)

    def _let_go(self, lease: Lease, ending: LeaseEnding | None) -> None:
        """Its pages count no more, and can be evicted. `ending` None: it goes on elsewhere."""
        self._note(lease.chain, -1)
        freed = self.takes.along(lease.chain)
        self.pages = [[a - b for a, b in zip(*own, strict=True)] for own in zip(self.pages, freed, strict=True)]
        self._eviction.push(lease.chain.item(-1))
        if ending is not None:
            self._ended.append((lease.terms.name, ending, lease.tokens))

    def settle(self, name: str, hit: Hit, now: float) -> None:
        """The request that was granted a lease has ended: the lease is held where the next one can continue."""
        booking = self.pending.pop(name)
        if hit.tokens:
            self._hold(booking.terms, hit.chain, now)
        elif name not in self.held:
            self._ended.append((name, LeaseEnding.NOTHING, 0))

    def release(self, name: str, ending: LeaseEnding = LeaseEnding.RELEASED) -> bool:
        """Ends a lease, held or pending. False: there is none of this name."""
        lease, booking = self.held.pop(name, None), self.pending.pop(name, None)
        if lease is not None:
            self._let_go(lease, ending)
        elif booking is not None:
            self._ended.append((name, ending, 0))
        return lease is not None or booking is not None

    def expire(self, now: float) -> None:
        """Ends leases whose time is over; not while a request of the same session is in progress."""
        for name in [name for name, one in self.held.items() if one.until <= now and name not in self.pending]:
            self.release(name, LeaseEnding.EXPIRED)

    def break_all(self, scope: bytes, ending: LeaseEnding) -> None:
        """The cache of a scope is about to be dropped. Bookings that count on a lease end with it."""
        for name in [name for name, one in self.held.items() if one.terms.scope.startswith(scope)]:
            self.release(name, ending)

    def events(self, step: int) -> list[Event]:
        """What has happened since the last call."""
        told: list[Event] = [LeaseHeld(step, *one) for one in self._began]
        told += [LeaseEnded(step, *one) for one in self._ended]
        self._began, self._ended = [], []
        return told


def _add(*several: Pages) -> Pages:
    return [[sum(one) for one in zip(*own, strict=True)] for own in zip(*several, strict=True)]
