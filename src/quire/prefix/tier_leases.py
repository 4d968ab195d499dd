"""Leases in a tier: the pool may evict their pages, and a request that continues them loads them again.

    pool ──usual pause > 2 × time to return, or the pool has no room──▶ tier: its records stay in host memory
         ◀──a request that begins with its tokens is admitted: they are loaded into its pages──┘
                                         └──the load fails──▶ broken, and the request computes its tokens

Only a tier that can promise keeps leases (`LeaseKeeper`): host memory does, up to a share of its blocks. Folders,
servers and connectors cannot promise, and keep none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from quire.core.request import Tokens
from quire.core.tier import Load
from quire.plan.records import Records
from quire.prefix.keys import end_key
from quire.prefix.leases import Lease, LeaseTerms, Where
from quire.prefix.nodes import NO_NODES, Chain, Nodes

Prefix = tuple[tuple[bytes, ...], bytes]
"""Keys of its whole units, and of the tokens after them."""


@runtime_checkable
class LeaseKeeper(Protocol):
    """A tier that keeps records until it is told otherwise, up to a part of its memory."""

    def lease(self, name: str, records: Sequence[bytes]) -> bool:
        """Keeps all of these, which it has or will have after the next step, in place of what it kept under this name.
        False: it lacks one, or they would exceed its memory for leases, and nothing has changed."""
        ...

    def end_lease(self, name: str) -> None: ...

    def is_stored(self, name: str) -> bool:
        """Whether all records of a lease can be loaded."""
        ...

    def lease_bytes_left(self) -> int:
        """Of its memory for leases."""
        ...

    def seconds_to_load(self, size_bytes: int) -> float | None:
        """Measured duration of a load of this size; None: nothing was measured yet."""
        ...


class Offers(Protocol):
    """Stores to a tier."""

    @property
    def keeper(self) -> object: ...

    @property
    def records(self) -> Records: ...

    def offer(self, chain: Chain) -> None:
        """The next step stores what the tier lacks of this chain."""
        ...


@dataclass(frozen=True, slots=True)
class Named:
    """A lease in the tier, and the names that lead to it."""

    lease: Lease
    keys: tuple[bytes, ...]
    """Of its whole units."""
    end: bytes
    """Of its last tokens, after these; empty if there are none."""


class TierLeases:
    """Which leases a tier keeps."""

    def __init__(self, nodes: Nodes, unit: int, stores: Offers | None) -> None:
        self._nodes, self._unit, self._stores = nodes, unit, stores
        keeper = None if stores is None else stores.keeper
        self.keeper = keeper if isinstance(keeper, LeaseKeeper) else None
        self._held: dict[str, Named] = {}

    def __bool__(self) -> bool:
        return bool(self._held)

    def __contains__(self, name: str) -> bool:
        return name in self._held

    @property
    def held(self) -> dict[str, Lease]:
        return {name: one.lease for name, one in self._held.items()}

    def of(self, owner: str) -> list[Lease]:
        return [one.lease for one in self._held.values() if one.lease.terms.owner == owner]

    def bytes_of(self, owner: str, besides: str) -> int:
        return sum(lease.size_bytes for lease in self.of(owner) if lease.terms.name != besides)

    def seconds_to_return(self, tokens: int) -> float:
        """0 as long as no load was measured: what is not known is tried."""
        if self.keeper is None or self._stores is None:
            return 0.0
        return self.keeper.seconds_to_load(self._stores.records.prefix_bytes(tokens)) or 0.0

    def has_room(self, tokens: int) -> bool:
        """Whether it could keep a lease of up to this many tokens."""
        if self.keeper is None or self._stores is None:
            return False
        return self._stores.records.most_prefix_bytes(tokens) <= self.keeper.lease_bytes_left()

    # ── holding and ending ────────────────────────────────────────────────

    def take(self, terms: LeaseTerms, chain: Chain, until: float) -> Lease | None:
        """Keeps the prefix along a chain, which the pool has. None: the tier has no room, cannot promise, or cannot
        have all of the chain."""
        if self.keeper is None or self._stores is None or not len(chain) or len(self.storable(chain)) < len(chain):
            return None
        keys, tokens = self._nodes.key[chain].tolist(), self._nodes.tokens.item(chain.item(-1))
        units = tokens // self._unit
        end = keys[-1] if tokens % self._unit else b""
        wanted = self._stores.records.wanted(Load(0, "", tuple(keys[:units]), tokens, end))
        self._stores.offer(chain)
        if not self.keeper.lease(terms.name, [name for name, _ in wanted]):
            return None
        lease = Lease(terms, tokens, until, NO_NODES, sum(size for _, size in wanted), Where.HOST)
        self._held[terms.name] = Named(lease, tuple(keys[:units]), end)
        return lease

    def renew(self, terms: LeaseTerms, until: float) -> Lease:
        """Keeps a lease that it has until another time."""
        own = self._held[terms.name]
        lease = replace(own.lease, terms=terms, until=until)
        self._held[terms.name] = replace(own, lease=lease)
        return lease

    def storable(self, chain: Chain) -> Chain:
        """The part of a chain that a tier can have: only whole units where every kind grows, and the cache has ends
        between units for forks alone."""
        if self._stores is None or self._stores.records.has_boundaries or not len(chain):
            return chain
        return chain[: self._nodes.tokens.item(chain.item(-1)) // self._unit]

    def let_go(self, name: str) -> Lease | None:
        """None: there is no lease of this name."""
        one = self._held.pop(name, None)
        if one is None or self.keeper is None:
            return None
        self.keeper.end_lease(name)
        return one.lease

    def is_stored(self, name: str) -> bool:
        return self.keeper is not None and self.keeper.is_stored(name)

    # ── questions of requests ─────────────────────────────────────────────

    def begun_by(self, keys: Sequence[bytes], tokens: Tokens, most: int) -> Lease | None:
        """The longest lease that these tokens begin with, of at most `most` tokens. `keys`: their root, then those of
        their units."""
        short = (one for one in self._held.values() if one.lease.tokens <= most)
        found = [one.lease for one in short if self._is_begun(one, keys, tokens)]
        return max(found, key=lambda lease: lease.tokens, default=None)

    def is_beyond(self, name: str, found: int, keys: Sequence[bytes], tokens: Tokens) -> bool:
        """Whether it has a lease of this name that these tokens begin with, of more than are found in the pool."""
        one = self._held.get(name)
        return one is not None and one.lease.tokens > found and self._is_begun(one, keys, tokens)

    def prefix(self, name: str) -> Prefix:
        own = self._held[name]
        return own.keys, own.end

    def of_prefix(self, prefix: Prefix, tokens: int) -> list[str]:
        """Names of the leases of a prefix of `tokens` tokens."""
        own = [(name, one) for name, one in self._held.items() if one.lease.tokens == tokens]
        return [name for name, one in own if (one.keys, one.end) == prefix]

    def begins(self, name: str, keys: Sequence[bytes], tokens: Tokens) -> bool:
        return self._is_begun(self._held[name], keys, tokens)

    def _is_begun(self, one: Named, keys: Sequence[bytes], tokens: Tokens) -> bool:
        units = len(one.keys)
        if units >= len(keys) or (units and keys[units] != one.keys[-1]):
            return False
        rest = tokens[units * self._unit : one.lease.tokens]
        is_long = len(rest) == one.lease.tokens - units * self._unit
        return is_long and (not one.end or one.end == end_key(keys[units], rest))
