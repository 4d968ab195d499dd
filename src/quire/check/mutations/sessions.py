"""Planted bugs of leases that move with their sessions: booked, refused, moved to a tier and back, ended in time."""

from __future__ import annotations

from quire.check.mutations.base import Mutation, Original, always
from quire.prefix.eviction import Eviction
from quire.prefix.hit import Hit
from quire.prefix.lease_sizes import Pages
from quire.prefix.leases import Lease, LeaseEnding, Leases, LeaseTerms
from quire.prefix.leasing import Leasing
from quire.prefix.nodes import Chain
from quire.prefix.tier_leases import TierLeases


def _until_the_old_time(renew: Original) -> Original:
    del renew
    return lambda self, terms, _until: self._held[terms.name].lease


def _in_the_pool_alone(expire: Original) -> Original:
    del expire
    return lambda self: self._leases.expire(self.now)


def _unless_replaced(end_in_tier: Original) -> Original:
    def wrong(self: Leasing, name: str, ending: LeaseEnding) -> bool:
        return ending is not LeaseEnding.REPLACED and bool(end_in_tier(self, name, ending))

    return wrong


def _when_any_has_ended(earliest: Original) -> Original:
    del earliest
    return lambda self, _needed: min(
        (lease.until for name, lease in self.held.items() if name not in self.pending), default=None
    )


def _stays_where_it_was(settle: Original) -> Original:
    def wrong(self: Leases, name: str, hit: Hit, now: float) -> None:
        if name in self.held:
            del self.pending[name]
        else:
            settle(self, name, hit, now)

    return wrong


def _of_one_lease(note: Original) -> Original:
    def wrong(self: Leases, chain: Chain, change: int) -> None:
        note(self, chain, change)
        end = chain.item(-1)
        if change < 0 and self._nodes.lease_ends[end]:
            self._nodes.lease_ends[end] = 0
            self._coverage.leased_states -= 1

    return wrong


def _but_for_one_sheet(fits: Original) -> Original:
    del fits

    def wrong(self: Leases, pages: Pages) -> bool:
        both = zip(self._stages, enumerate(pages), strict=True)
        return all(self.takes.sheets(*one) < max(1, stage.lease_sheets) for stage, one in both)

    return wrong


def _whoever_needs_it(expire: Original) -> Original:
    del expire

    def wrong(self: Leases, now: float) -> None:
        for name in [name for name, lease in self.held.items() if lease.until <= now]:
            self.release(name, LeaseEnding.EXPIRED)

    return wrong


def _held_alone(bytes_of: Original) -> Original:
    del bytes_of

    def wrong(self: Leases, owner: str, besides: str) -> int:
        held = sum(lease.size_bytes for lease in self.of(owner) if lease.terms.name != besides)
        return held + self.bytes_elsewhere(owner, besides)

    return wrong


def _inner_ones_too(is_current: Original) -> Original:
    def wrong(self: Eviction, rank: float, found: int) -> bool:
        nodes = self.nodes
        if found < 0 or not nodes.children[found]:
            return bool(is_current(self, rank, found))
        return bool(nodes.is_boundary[found] and nodes.rank[found] == rank)

    return wrong


def _for_less(take: Original) -> Original:
    def wrong(self: TierLeases, terms: LeaseTerms, chain: Chain, until: float) -> Lease | None:
        lease: Lease | None = take(self, terms, chain[: max(1, len(chain) - 1)], until)
        return lease

    return wrong


SESSIONS: dict[str, Mutation] = {
    "tier-lease-renewed-until-the-old-time": Mutation(
        "a lease in a tier that is asked for again ends at its old time", TierLeases, "renew", _until_the_old_time
    ),
    "tier-lease-outlives-its-time": Mutation(
        "leases in a tier do not end at their time", Leasing, "_expire", _in_the_pool_alone
    ),
    "lease-in-two-places": Mutation(
        "a lease that moves back to the pool stays in the tier", Leasing, "_end_in_tier", _unless_replaced
    ),
    "lease-promised-too-early": Mutation(
        "a refusal names the time at which any lease ends", Leases, "_earliest", _when_any_has_ended
    ),
    "lease-refused-needlessly": Mutation(
        "leases are granted up to one sheet less", Leases, "_fits", _but_for_one_sheet
    ),
    "lease-stays-behind": Mutation(
        "a session's lease stays where an earlier turn ended", Leases, "settle", _stays_where_it_was
    ),
    "lease-end-of-two-given-up": Mutation(
        "where two leases end, a hit takes over the pages when one of them is over", Leases, "_note", _of_one_lease
    ),
    "lease-ends-during-the-next-turn": Mutation(
        "a lease ends at its time although its session's next turn is in progress", Leases, "expire", _whoever_needs_it
    ),
    "lease-quota-without-bookings": Mutation(
        "a key's quota does not count what is granted with requests", Leases, "_bytes_of", _held_alone
    ),
    "lease-memory-without-bookings": Mutation(
        "lease memory does not count what is granted with requests", Leases, "_taken", lambda _: lambda self: self.pages
    ),
    "lease-dropped-inside-a-chain": Mutation(
        "where a chain goes on after a lease, its boundary is evicted", Eviction, "_is_current", _inner_ones_too
    ),
    "tier-lease-of-one-unit-less": Mutation(
        "a tier keeps a lease up to the place before its end", TierLeases, "take", _for_less
    ),
    "tier-lease-shrinks": Mutation(
        "a lease in a tier that is asked for again has what the pool has", TierLeases, "is_beyond", always(False)
    ),
}
