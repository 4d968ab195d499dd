"""An explanation as values: why a request waits, what it lacks, which requests hold that, and when it can run."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from quire.core.reasons import Reason, WayBack, Why

ANOTHER = "another"
"""Stands for a request whose name the reader may not see."""
OTHER_KEYS = "other keys"
"""Stands for all such requests together, where what they hold is added up."""


@dataclass(frozen=True, slots=True)
class KindShort:
    """One kind on one stage: what a request needs to start and stay, what is free, and what holds the rest."""

    stage: int
    kind: str
    needs_pages: int
    free_pages: int
    """In sheets of this kind, and in those that are free."""
    awaited_pages: int
    """Pages that running requests are likely to take in addition."""
    requests: tuple[tuple[str, int], ...]
    """(request, pages), the greatest first."""
    others: tuple[tuple[str, int], ...] = ()
    """(holder, pages): requests without names together, and `cache`, `pins` and `backend` for what only these hold."""
    evictable_pages: int = 0
    """That only the cache holds, for no lease: a request that needs them gets them."""

    @property
    def short_pages(self) -> int:
        return max(0, self.needs_pages + self.awaited_pages - self.free_pages - self.evictable_pages)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a request waits, what holds the pages that it lacks, and when it can run."""

    request: str
    status: str
    """waiting, loading, running"""
    reason: Reason
    way_back: WayBack | None = None
    """After a preemption, with a tier."""
    kinds: tuple[KindShort, ...] = ()
    steps: int = 0
    """The most steps that are launched before the one that it runs in, whatever arrives; 0 if it runs."""
    load_seconds: float = 0.0
    """The most seconds that requests before it wait for a tier, in addition."""
    after: tuple[str, ...] = ()
    """Requests that must have ended before there is room for it and for those queued before it."""
    kept_share: float = 0.0
    """The part of the pool that is kept for cached prefixes which other queued requests are about to use."""


def explained_without_others(found: Explanation, own: Collection[str]) -> Explanation:
    """The same for a whole explanation: of what other requests hold, the sum is left."""
    kinds = tuple(_short_without_others(one, own) for one in found.kinds)
    after = tuple(name if name in own else ANOTHER for name in found.after)
    return replace(found, reason=without_others(found.reason, own), kinds=kinds, after=after)


def _short_without_others(one: KindShort, own: Collection[str]) -> KindShort:
    kept = tuple((name, pages) for name, pages in one.requests if name in own)
    hidden = sum(pages for name, pages in one.requests if name not in own)
    return replace(one, requests=kept, others=(*([(OTHER_KEYS, hidden)] if hidden else []), *one.others))


def without_others(reason: Reason, own: Collection[str]) -> Reason:
    """The reason for a reader who may only see the requests in `own`: without the names of others, a tier's messages,
    and the fact that another scope has the same prefix."""
    return replace(
        reason,
        code=Why.NO_OVERLAP if reason.code is Why.SCOPE else reason.code,
        requests=tuple(name if name in own else ANOTHER for name in reason.requests),
        because=None if reason.because is None else without_others(reason.because, own),
        detail="",
    )
