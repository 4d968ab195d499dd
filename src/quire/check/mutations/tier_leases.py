"""Planted bugs of leases in a tier: evicted there, overbooked, started cold, not broken, never given back."""

from __future__ import annotations

from collections.abc import Sequence

from quire.check.mutations.base import Mutation, Original, always, nothing
from quire.core.reasons import Reason, Why
from quire.prefix.leasing import Leasing, Queued
from quire.prefix.tier_leases import TierLeases
from quire.scheduler.admission import Admission
from quire.scheduler.queue import Ticket
from quire.scheduler.room import Pages
from quire.tiers.host_leases import HostLeases


def _not_kept(lease: Original) -> Original:
    def wrong(self: HostLeases, name: str, records: Sequence[bytes]) -> bool:
        is_kept: bool = lease(self, name, records)
        self._cache.leased.clear()
        return is_kept

    return wrong


def _what_is_there(lease: Original) -> Original:
    def wrong(self: HostLeases, name: str, records: Sequence[bytes]) -> bool:
        is_kept: bool = lease(self, name, [record for record in records if record in self._cache])
        return is_kept

    return wrong


def _waits(why_no_copy: Original) -> Original:
    def wrong(self: Admission, ticket: Ticket, promised: Pages) -> Reason | None:
        reason: Reason | None = why_no_copy(self, ticket, promised)
        return reason or (Reason(Why.LEASED) if ticket.leased else None)

    return wrong


def _still_to_be_loaded(copies: Original) -> Original:
    def wrong(self: Leasing, queued: Queued) -> Pages | None:
        may_load, queued.may_load = queued.may_load, True
        pages: Pages | None = copies(self, queued)
        queued.may_load = may_load
        return pages

    return wrong


TIER_LEASES: dict[str, Mutation] = {
    "tier-lease-evicted": Mutation("host memory evicts records of leases", HostLeases, "lease", _not_kept),
    "tier-lease-overbooked": Mutation("leases may take all of host memory", HostLeases, "most_blocks", always(1 << 60)),
    "tier-lease-incomplete": Mutation(
        "a lease moves to a tier that lacks some of its records", HostLeases, "lease", _what_is_there
    ),
    "tier-lease-started-cold": Mutation(
        "a request that continues a lease in a tier does not load it", Leasing, "_in_tier", always(None)
    ),
    "tier-lease-waits-needlessly": Mutation(
        "a request that continues a lease in a tier waits though there is room for it",
        Admission,
        "why_no_copy",
        _waits,
    ),
    "tier-lease-not-broken": Mutation(
        "a lease that cannot be loaded stays in the books", Leasing, "_on_event", nothing
    ),
    "tier-lease-never-given-back": Mutation(
        "host memory keeps the records of leases that have ended", HostLeases, "end_lease", nothing
    ),
    "tier-lease-of-failed-step": Mutation(
        "leases stay although the step that stored them failed", TierLeases, "is_stored", always(True)
    ),
    "tier-lease-without-quota": Mutation(
        "a key's quota does not count its leases in a tier", TierLeases, "bytes_of", always(0)
    ),
    "tier-lease-awaited-in-vain": Mutation(
        "a request whose load has failed goes on waiting for a lease in a tier", Leasing, "copies", _still_to_be_loaded
    ),
}
