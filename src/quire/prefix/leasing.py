"""Leases for the scheduler: finds the prefix that is asked for, and books room for the end of a request.

A request that continues from a leased prefix copies what it writes on, and never takes it over. If there is no room for
the copies, it waits; for the elder, room is made. The same holds for what it loads of a lease in a tier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain as chain_of
from itertools import count
from typing import Protocol

from quire.core.errors import InputError
from quire.core.events import Event, LoadFailed, Publisher, RequestEnded
from quire.core.request import Request, Tokens
from quire.prefix.hit import Hit
from quire.prefix.index import PrefixIndex
from quire.prefix.keys import end_key, keys_of, scope_of
from quire.prefix.lease_pauses import Pauses
from quire.prefix.lease_sizes import Pages
from quire.prefix.leases import (
    Lease,
    LeaseAnswer,
    LeaseEnded,
    LeaseEnding,
    LeaseHeld,
    LeaseMoved,
    LeaseRefusal,
    LeaseTerms,
    Where,
)
from quire.prefix.nodes import Chain
from quire.prefix.tier_leases import Offers, Prefix, TierLeases

RETURNS_PER_PAUSE = 2.0
"""A lease leaves the pool if its usual pause is longer than this many times the time to return."""


class Queued(Protocol):
    """A queued request, as far as leases need to know."""

    request: Request
    keys: list[bytes]
    root: bytes
    leased: int
    offer: int | None
    may_load: bool

    @property
    def may_reuse(self) -> bool: ...

    @property
    def known(self) -> int: ...

    def tokens(self, begin: int, end: int) -> Tokens: ...


class Leasing:
    """Grants leases, moves them to a tier, and ends them in time."""

    def __init__(self, index: PrefixIndex, publisher: Publisher, stores: Offers | None = None) -> None:
        self._index, self._leases, self._publisher = index, index.leases, publisher
        self.tier = TierLeases(index.nodes, index.unit, stores)
        self._leases.bytes_elsewhere = self.tier.bytes_of
        self._pauses = Pauses()
        self._idle: dict[str, None] = {}
        """Leases whose session has just begun to pause."""
        self._back: dict[str, str] = {}
        """By lease, of which a request has come since the scheduler was last called: its owner."""
        self._returning: dict[str, Prefix] = {}
        """By request: the leased prefix in a tier that it continues."""
        self.now = 0.0
        """When the scheduler was last called."""
        publisher.subscribe(self._on_event)

    @property
    def has_leases(self) -> bool:
        """Whether a request may continue from a leased prefix, and copy what it writes on or load it. Where every kind
        grows, it copies between units alone: where others branched off."""
        may_copy = self._index.coverage.has_boundaries or bool(self._index.ends)
        return bool(self.tier) or (bool(self._leases.held) and may_copy)

    def held(self) -> list[Lease]:
        """Leases in the pool and in a tier, in no order."""
        return [*self._leases.held.values(), *self.tier.held.values()]

    def go_on(self, now: float) -> None:
        self.now = now
        while self._back:
            self._pauses.end(*self._back.popitem(), now)
        self._expire()
        if self._idle:
            self._move_idle()
        self._report()

    def _expire(self) -> None:
        self._leases.expire(self.now)
        for name, lease in self.tier.held.items() if self.tier else ():
            if lease.until <= self.now and name not in self._leases.pending:
                self._end_in_tier(name, LeaseEnding.EXPIRED)

    def _report(self) -> None:
        for event in self._leases.events(self._publisher.step):
            if isinstance(event, LeaseEnded) and event.ending is not LeaseEnding.REPLACED:
                self._pauses.forget(event.lease)
            self._publisher.publish(event)

    def ask(self, terms: LeaseTerms, root: bytes, tokens: Tokens, now: float) -> LeaseAnswer:
        """Leases the longest prefix of these tokens that is in the cache, or says what is possible."""
        self.go_on(now)
        self._check_name(terms)
        terms = replace(terms, scope=scope_of(root))  # so that it ends if this scope's cache is dropped
        keys = [] if self._index.disabled else keys_of(root, tokens, self._index.unit)
        hit = self._index.find(keys, root, tokens, len(tokens))
        if self.tier.is_beyond(terms.name, hit.tokens, [root, *keys], tokens):
            return self._held_in_tier(self.tier.renew(terms, now + terms.seconds))
        answer = self._leases.grant(terms, hit, now)
        if answer.refusal is None:
            self._end_in_tier(terms.name, LeaseEnding.REPLACED)
        elif answer.refusal is LeaseRefusal.MEMORY:
            answer = self._grant_in_tier(terms, hit, now) or answer
        self._report()
        return answer

    def release(self, name: str) -> bool:
        """False: there is no lease of this name."""
        if name in self.tier:
            self._leases.pending.pop(name, None)  # it ends with the lease, which is reported once
            is_there = self._end_in_tier(name, LeaseEnding.RELEASED)
        else:
            is_there = self._leases.release(name)
        self._report()
        return is_there

    def break_all(self, scope: bytes, ending: LeaseEnding) -> None:
        """The cache of a scope is about to be dropped. After a failed step, a tier keeps what it has stored."""
        self._leases.break_all(scope, ending)
        for name, lease in self.tier.held.items():
            is_lost = ending is not LeaseEnding.FAILED or not self.tier.is_stored(name)
            if lease.terms.scope.startswith(scope) and is_lost:
                self._end_in_tier(name, ending)
        self._report()

    def _check_name(self, terms: LeaseTerms) -> None:
        self._leases.check_name(terms)
        if self._is_of_another(terms.name, terms.owner):
            raise InputError(f"a lease named {terms.name} is there already: give each its own name")

    def _is_of_another(self, name: str, owner: str) -> bool:
        away = self.tier.held.get(name)
        return self._leases.is_of_another(name, owner) or (away is not None and away.terms.owner != owner)

    # ── in a tier ─────────────────────────────────────────────────────────

    def _grant_in_tier(self, terms: LeaseTerms, hit: Hit, now: float) -> LeaseAnswer | None:
        """The pool has no room: a tier keeps the lease from the next step on."""
        lease = self.tier.take(terms, self.tier.storable(hit.chain), now + terms.seconds)
        if lease is None:
            return None
        before = self._leases.held.get(terms.name)
        if before is not None:
            self._leases.give_away(terms.name)
        return self._held_in_tier(lease)

    def _held_in_tier(self, lease: Lease) -> LeaseAnswer:
        name, size = lease.terms.name, lease.size_bytes
        self._publish(LeaseHeld(self._publisher.step, name, lease.tokens))
        self._publish(LeaseMoved(self._publisher.step, name, lease.tokens))
        return LeaseAnswer(name, None, lease.tokens, lease.until, size_bytes=size, where=lease.where)

    def _move_idle(self) -> None:
        """Moves leases to the tier whose sessions usually pause for longer than they take to return."""
        for name in list(self._idle):
            lease = self._leases.held.get(name)
            if lease is None or name in self._leases.pending:
                continue
            usual = self._pauses.usual(name, lease.terms.owner)
            if usual is None or usual <= RETURNS_PER_PAUSE * self.tier.seconds_to_return(lease.tokens):
                continue
            if self.tier.take(lease.terms, lease.chain, lease.until) is not None:
                self._leases.give_away(name)
                self._publish(LeaseMoved(self._publisher.step, name, lease.tokens))
        self._idle.clear()

    def _end_in_tier(self, name: str, ending: LeaseEnding) -> bool:
        lease = self.tier.let_go(name)
        if lease is None:
            return False
        self._publish(LeaseEnded(self._publisher.step, name, ending, lease.tokens))
        if ending is not LeaseEnding.REPLACED:
            self._pauses.forget(name)
        return True

    def _publish(self, event: Event) -> None:
        self._publisher.publish(event)

    def _on_event(self, event: Event) -> None:
        """A lease is broken if the load of its tokens fails: the request computes them."""
        if isinstance(event, LoadFailed):
            for name in self.tier.of_prefix(self._returning.pop(event.request, ((), b"")), event.tokens):
                self._end_in_tier(name, LeaseEnding.TIER)
        elif isinstance(event, RequestEnded):
            self._returning.pop(event.request, None)

    # ── with a request ────────────────────────────────────────────────────

    def book(self, request: Request, keys: Sequence[bytes], root: bytes) -> LeaseAnswer:
        """Counts room for the end of a request that asks for a lease. `keys`: of its prompt."""
        retain = request.retain
        assert retain is not None, "it asks for a lease"
        chain = self._index.nodes.follow(keys, len(keys))
        name = retain.session or self._session(request, keys, root, chain) or request.name
        if not self._is_free(name, request.tenant):  # another request of the session is in progress, and moves it
            names = chain_of((request.name,), (f"{request.name} {number}" for number in count(2)))
            name = next(one for one in names if self._is_free(one, request.tenant))
        if self.tier.keeper is not None:
            self._back[name] = request.tenant
        scope = scope_of(root)
        terms = LeaseTerms(name, request.tenant, retain.seconds, scope, retain.quota_bytes, is_rolling=True)
        answer = self._leases.book(terms, request.name, request.limit, chain)
        if answer.refusal is LeaseRefusal.MEMORY and self.tier.has_room(request.limit):
            return replace(answer, elsewhere=Where.HOST)
        return answer

    def _is_free(self, name: str, owner: str) -> bool:
        return name not in self._leases.pending and not self._is_of_another(name, owner)

    def _session(self, request: Request, keys: Sequence[bytes], root: bytes, chain: Chain) -> str | None:
        """The lease of the same tenant that ends furthest along the prompt, and moves with its session."""
        along = [
            one
            for one in (*self._leases.of(request.tenant), *self.tier.of(request.tenant))
            if one.terms.is_rolling
            and one.terms.name not in self._leases.pending
            and self._begins(request.prompt, [root, *keys], chain, one)
        ]
        return max(along, key=lambda one: one.tokens).terms.name if along else None

    def _begins(self, prompt: Tokens, keys: Sequence[bytes], chain: Chain, lease: Lease) -> bool:
        """Whether a prompt begins with the tokens of a lease. `keys`: its root, then those of its units."""
        if lease.where is not Where.POOL:
            return self.tier.begins(lease.terms.name, keys, prompt)
        units, rest = divmod(lease.tokens, self._index.unit)
        if units > len(chain) or (units and chain[units - 1] != lease.chain[units - 1]):
            return False
        end = prompt[units * self._index.unit : lease.tokens]
        return not rest or (len(end) == rest and self._index.nodes.key[lease.chain[-1]] == end_key(keys[units], end))

    def settle(
        self, name: str, request: str, keys: Sequence[bytes], root: bytes, tokens: Tokens, *, keep: bool
    ) -> None:
        """A request has ended: its lease is held from now on, where a request with all its tokens would continue;
        unless it was released in the meantime. Not `keep`: its step has failed, and what a tier keeps of its session
        stays there: it does not move to a pool that is about to be dropped."""
        booking = self._leases.pending.get(name)
        if booking is None or booking.request != request:
            return
        named = (len(keys) + 1) * self._index.unit - 1  # what a row left without keeping it has no keys
        hit = self._index.find(keys, root, tokens, min(named, len(tokens) - 1))
        is_beyond = self.tier.is_beyond(name, hit.tokens, [root, *keys], tokens)
        if name in self.tier and (not keep or is_beyond or not hit.tokens):  # it may have left before the load
            del self._leases.pending[name]
        else:
            self._leases.settle(name, hit, self.now)
        if name in self._leases.held:
            self._end_in_tier(name, LeaseEnding.REPLACED)
            if self.tier.keeper is not None:
                self._pauses.begin(name, self.now)
                self._idle[name] = None
        self._expire()  # if the session's older lease stays, its time may have passed while the request ran
        self._report()

    # ── hits ──────────────────────────────────────────────────────────────

    def copies(self, queued: Queued) -> Pages | None:
        """Pages that a request copies because it continues from a leased prefix, or takes for a load of one that is in
        a tier, which it is then offered. None: it continues from none."""
        queued.leased = 0
        self._returning.pop(queued.request.name, None)
        if not queued.may_reuse or not self.has_leases:
            return None
        keys, root, tokens = queued.keys, queued.root, queued.tokens(0, queued.known)
        hit = self._index.find(keys, root, tokens)
        lease = self._in_tier(keys, root, tokens) if queued.may_load else None  # after a failed load it computes
        if lease is not None:
            self._returning[queued.request.name] = self.tier.prefix(lease.terms.name)
            queued.leased = lease.tokens
            if hit.tokens >= lease.tokens:
                queued.offer = None if queued.offer == lease.tokens else queued.offer  # nothing of it is to be loaded
                return self._copied_at(hit)
            queued.offer = lease.tokens
            return self._leases.takes.to_begin_at(lease.tokens)
        while hit.tokens and any(map(any, self._copied_at(hit))) and not self._leases.is_end(hit.chain.item(-1)):
            hit = self._index.find(keys, root, tokens, hit.tokens - 1)
        return self._copied_at(hit) if hit.tokens else None

    def _copied_at(self, hit: Hit) -> Pages:
        return [memory.copied_at(hit.tokens) for memory in self._index.memories]

    def _in_tier(self, keys: Sequence[bytes], root: bytes, tokens: Tokens) -> Lease | None:
        if not self.tier:
            return None
        if len(keys) < len(tokens) // self._index.unit:  # it has generated more since it was named
            keys = keys_of(root, tokens, self._index.unit)
        return self.tier.begun_by([root, *keys], tokens, len(tokens) - 1)
