"""Leases for the scheduler: finds the prefix that is asked for, and books room for the end of a request.

A request that continues from a leased prefix copies what it writes on, and never takes it over. If there is no room for
the copies, it waits; for the elder, room is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from quire.core.events import Publisher
from quire.core.request import Request, Tokens
from quire.prefix.index import PrefixIndex
from quire.prefix.keys import end_key, keys_of, scope_of
from quire.prefix.lease_sizes import Pages
from quire.prefix.leases import Lease, LeaseAnswer, LeaseEnding, LeaseTerms
from quire.prefix.nodes import Chain


class Leasing:
    """Grants leases, and ends them in time."""

    def __init__(self, index: PrefixIndex, publisher: Publisher) -> None:
        self._index, self._leases, self._publisher = index, index.leases, publisher
        self.now = 0.0
        """When the scheduler was last called."""

    @property
    def has_leases(self) -> bool:
        """Whether a request may continue from a leased prefix and copy what it writes on."""
        return bool(self._leases.held) and self._index.coverage.has_boundaries

    def go_on(self, now: float) -> None:
        self.now = now
        self._leases.expire(now)
        self._report()

    def _report(self) -> None:
        for event in self._leases.events(self._publisher.step):
            self._publisher.publish(event)

    def ask(self, terms: LeaseTerms, root: bytes, tokens: Tokens, now: float) -> LeaseAnswer:
        """Leases the longest prefix of these tokens that is in the cache, or says what is possible."""
        self.go_on(now)
        self._leases.check_name(terms)
        terms = replace(terms, scope=scope_of(root))  # so that it ends if this scope's cache is dropped
        keys = [] if self._index.disabled else keys_of(root, tokens, self._index.unit)
        answer = self._leases.grant(terms, self._index.find(keys, root, tokens, len(tokens)), now)
        self._report()
        return answer

    def release(self, name: str) -> bool:
        """False: there is no lease of this name."""
        is_there = self._leases.release(name)
        self._report()
        return is_there

    def break_all(self, scope: bytes, ending: LeaseEnding) -> None:
        self._leases.break_all(scope, ending)
        self._report()

    # ── with a request ────────────────────────────────────────────────────

    def book(self, request: Request, keys: Sequence[bytes], root: bytes) -> LeaseAnswer:
        """Counts room for the end of a request that asks for a lease. `keys`: of its prompt."""
        retain = request.retain
        assert retain is not None, "it asks for a lease"
        chain = self._index.nodes.follow(keys, len(keys))
        name = retain.session or self._session(request, keys, root, chain) or request.name
        if name in self._leases.pending or self._leases.is_of_another(name, request.tenant):
            name = request.name  # another request of the session is in progress, and moves its lease
        scope = scope_of(root)
        terms = LeaseTerms(name, request.tenant, retain.seconds, scope, retain.quota_bytes, is_rolling=True)
        return self._leases.book(terms, request.limit, chain)

    def _session(self, request: Request, keys: Sequence[bytes], root: bytes, chain: Chain) -> str | None:
        """The lease of the same tenant that ends furthest along the prompt, and moves with its session."""
        along = [
            one
            for one in self._leases.of(request.tenant)
            if one.terms.is_rolling
            and one.terms.name not in self._leases.pending
            and self._begins(request.prompt, [root, *keys], chain, one)
        ]
        return max(along, key=lambda one: one.tokens).terms.name if along else None

    def _begins(self, prompt: Tokens, keys: Sequence[bytes], chain: Chain, lease: Lease) -> bool:
        """Whether a prompt begins with the tokens of a lease. `keys`: its root, then those of its units."""
        units, rest = divmod(lease.tokens, self._index.unit)
        if units > len(chain) or (units and chain[units - 1] != lease.chain[units - 1]):
            return False
        end = prompt[units * self._index.unit : lease.tokens]
        return not rest or (len(end) == rest and self._index.nodes.key[lease.chain[-1]] == end_key(keys[units], end))

    def settle(self, name: str, keys: Sequence[bytes], root: bytes, tokens: Tokens) -> None:
        """A request has ended: its lease is held from now on, where a request with all its tokens would continue."""
        named = (len(keys) + 1) * self._index.unit - 1  # what a row left without keeping it has no keys
        hit = self._index.find(keys, root, tokens, min(named, len(tokens) - 1))
        self._leases.settle(name, hit, self.now)
        self._report()

    # ── hits ──────────────────────────────────────────────────────────────

    def copies(self, keys: Sequence[bytes], root: bytes, tokens: Tokens) -> Pages | None:
        """Pages that a request copies if it continues from a leased prefix; None: it does not, or copies none."""
        hit = self._index.find(keys, root, tokens)
        while hit.tokens and not self._leases.is_end(hit.chain.item(-1)):
            hit = self._index.find(keys, root, tokens, hit.tokens - 1)
        return [memory.copied_at(hit.tokens) for memory in self._index.memories] if hit.tokens else None
